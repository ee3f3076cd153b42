"""The data on a traced process that queries may use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from bpfleakd.kernel.maps import Maps
from bpfleakd.model.code.stack import NamedStack
from bpfleakd.model.site import SiteKey
from bpfleakd.table.address_map import AddressMap
from bpfleakd.table.block_sample import BlockSample
from bpfleakd.tracing.address_space.address_maps import AddressMaps
from bpfleakd.tracing.address_space.regions import regions_as_blocks
from bpfleakd.tracing.traced_process import TracedProcess


class ProcessView(Struct, frozen=True):
    """A process, its address map, its names and the time (CLOCK_MONOTONIC)."""

    traced: TracedProcess
    maps: Maps
    address_maps: AddressMaps
    clock_ns: Callable[[], int]

    @property
    def space(self) -> AddressMap | None:
        """The owners of mappings; None once the process is no longer traced."""
        return self.address_maps.map_of(self.traced.pid)

    def heap_since_attach(self) -> list[tuple[int, int]]:
        """The address ranges in which only the allocators have put blocks since the attach."""
        return self.address_maps.heap_since_attach(self.traced.pid)

    def name(self, keys: Iterable[SiteKey]) -> dict[SiteKey, NamedStack]:
        """The stacks of sites, with the best names currently available."""
        return self.traced.named_stacks(self.maps, keys, self.clock_ns())

    def learn_charging(self) -> None:
        """Find the callers that free their blocks, and so are not to blame."""
        pid = self.traced.pid
        self.traced.charging.learn(self.traced.table, lambda key: self.maps.stack(pid, key.stack_id))

    def take_census(self, sample: BlockSample | None = None) -> None:
        """Count blocks and regions by thread and age, with a `sample`, unless the last census is recent."""
        self.traced.take_census(self.maps, self.space, self.clock_ns, sample)

    def all_blocks(self) -> Iterator[NDArray[np.void]]:
        """All blocks and mappings: batches of LIVE_BLOCK records, kinds by BLOCK_KINDS."""
        space = self.space
        return chain(
            (values for _addresses, values in self.maps.live_blocks(self.traced.pid)),
            [regions_as_blocks(space.live_regions())[1]] if space else [],
        )
