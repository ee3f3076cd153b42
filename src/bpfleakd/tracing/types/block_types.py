"""Determines the classes in the live blocks of the largest call sites, from a sample.

Rules:
- This happens only on requests for a report, for its first call sites, and rarely: the blocks are read
  outside of the tracing loop, and the pause after that is many times as long.
- An unprivileged helper demangles the names. Texts that are not names of classes are dropped.
- A class further inside its blocks counts only if nearly all blocks have it there: else it may be a remnant
  of an earlier block.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection
from functools import partial

import numpy as np
import structlog
from numpy.typing import NDArray

from bpfleakd import errors
from bpfleakd.kernel.abi import KINDS
from bpfleakd.model.process import ProcessId
from bpfleakd.model.report import BlockType
from bpfleakd.model.site import AllocationKind, SiteKey
from bpfleakd.process.mappings import read_mappings
from bpfleakd.process.memory_sampler import read_anonymous_bytes
from bpfleakd.process.remote_memory import RemoteMemory
from bpfleakd.symbols.cxx.class_names import class_name, type_name_symbol
from bpfleakd.symbols.cxx.rtti import ClassReader, FoundClass, VtableNames
from bpfleakd.table.block_sample import BlockSample
from bpfleakd.table.site_table import COUNTERS, SiteTable
from bpfleakd.tracing.background import Background
from bpfleakd.tracing.reading_budget import Pause

log = structlog.get_logger()

Readable = Callable[[Collection[str], float], dict[str, str]]
"""Demangles names, within the given number of seconds; names that took longer are missing."""

Rank = Callable[[NDArray[np.intp]], tuple[NDArray[np.int8], NDArray[np.float64]]]
"""The importance of rows of the table, and their rates (SiteVerdicts.ranks)."""

_SITES_MAX = 20
_BLOCKS_PER_SITE = 50
# 1/200 of a core, and the result is valid for a while.
_PAUSE = 200
_FRESH_NS = 10_000_000_000
_NAMES_LIMIT_S = 1.0
_SHOWN_MAX = 5
_SHARE_MIN = 0.01
_SHARE_INSIDE_MIN = 0.8


class BlockTypes:
    """The known classes of one process. `readable` demangles, `vtables` has names of vtables by symbols."""

    def __init__(
        self,
        process: ProcessId,
        readable: Readable,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        vtables: VtableNames | None = None,
    ) -> None:
        self._process = process
        self._readable = readable
        self._clock_ns = clock_ns
        self._reader = ClassReader(vtables)
        self._pause = Pause(_PAUSE)
        self._read_ns = 0
        self._found: dict[int, tuple[BlockType, ...]] = {}
        self._is_pending = False
        self.lacked_total = 0

    def of(self, key: SiteKey) -> tuple[BlockType, ...]:
        """The known types of a call site, the most frequent first."""
        return self._found.get(key.stack_id, ()) if key.kind is AllocationKind.HEAP else ()

    @property
    def is_pending(self) -> bool:
        """Whether blocks are being read."""
        return self._is_pending

    def sample(self, table: SiteTable, rank: Rank) -> BlockSample | None:
        """Where `begin` puts the blocks; None if a reading is not yet due."""
        now_ns = self._clock_ns()
        if self._is_pending or not self._pause.is_due(now_ns):
            return None
        wanted = _largest(table, rank)
        if not wanted or (now_ns - self._read_ns < _FRESH_NS and self._found.keys() >= set(wanted)):
            return None
        return BlockSample(KINDS.index(AllocationKind.HEAP), wanted, _BLOCKS_PER_SITE)

    def begin(self, sample: BlockSample, background: Background) -> None:
        """Read the blocks of a sample. The current answer does not include the result."""
        if not len(sample.blocks):
            return
        self._is_pending = True
        if background.begin(str(self._process), partial(self._read, sample)):
            self.lacked_total += 1
        else:
            self._is_pending = False

    def _read(self, sample: BlockSample) -> None:
        began_ns = self._clock_ns()
        try:
            found = self._classes(sample.blocks)
            names = {type_name_symbol(one.name) for one in found if one is not None}
            readable = self._readable(names, _NAMES_LIMIT_S) if names else {}
            self._found = _by_site(sample, found, readable)
            self._read_ns = began_ns
        except (OSError, errors.BpfleakdError) as error:
            log.debug("types.not-read", pid=self._process.pid, reason=str(error))
        finally:
            self._pause.done(began_ns, self._clock_ns())
            self._is_pending = False

    def _classes(self, blocks: NDArray[np.void]) -> list[FoundClass | None]:
        pid = self._process.pid
        with RemoteMemory(pid) as memory:
            self._reader.use(read_mappings(pid))
            found = self._reader.read(pid, memory, blocks["address"], blocks["size"])
        if read_anonymous_bytes(self._process) is None:
            raise errors.NoSuchProcess(f"process {pid} has ended")
        return found


def _largest(table: SiteTable, rank: Rank) -> list[int]:
    """The stacks of the heap sites that a report begins with."""
    keys, used = table.keys, table.used_rows
    attention, rates = rank(used)
    live_bytes = table.columns()[used, COUNTERS.index("live_bytes")]
    order = np.lexsort((live_bytes, rates, attention))[::-1][: 2 * _SITES_MAX]
    wanted = (keys[row] for row in used[order].tolist())
    return [key.stack_id for key in wanted if key.kind is AllocationKind.HEAP][:_SITES_MAX]


def _by_site(
    sample: BlockSample, found: list[FoundClass | None], readable: dict[str, str]
) -> dict[int, tuple[BlockType, ...]]:
    """The classes of each site with blocks in the sample."""
    blocks = sample.blocks
    totals: dict[int, float] = defaultdict(float)
    sums: dict[int, dict[tuple[str, int], list[float]]] = defaultdict(lambda: defaultdict(lambda: [0.0, 0]))
    for stack_id, weight, one in zip(
        blocks["stack_id"].tolist(), blocks["weight"].tolist(), found, strict=True
    ):
        totals[stack_id] += weight
        name = class_name(readable.get(type_name_symbol(one.name), "")) if one is not None else None
        if one is not None and name is not None:
            shown = f"{name}[]" if one.is_array else name
            of_class = sums[stack_id][shown, 0 if one.is_array else one.offset_bytes]
            of_class[0] += weight
            of_class[1] += 1
    return {stack_id: _types(sums[stack_id], total) for stack_id, total in totals.items()}


def _types(sums: dict[tuple[str, int], list[float]], total: float) -> tuple[BlockType, ...]:
    types = [
        BlockType(name, round(weight / total, 3), offset_bytes, int(count))
        for (name, offset_bytes), (weight, count) in sums.items()
        if weight / total >= (_SHARE_INSIDE_MIN if offset_bytes else _SHARE_MIN)
    ]
    return tuple(sorted(types, key=lambda one: (-one.share, one.type))[:_SHOWN_MAX])
