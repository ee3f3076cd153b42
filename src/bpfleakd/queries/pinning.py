"""The call sites whose live blocks pin freed memory, with names."""

from __future__ import annotations

from collections.abc import Sequence

from bpfleakd.analysis.pinned_memory import PinnedPages, Pinning, pinning_sites
from bpfleakd.model.address_space import PinningSite
from bpfleakd.model.site import AllocationKind, SiteKey
from bpfleakd.tracing.process_view import ProcessView

_SITES_MAX = 5
_BYTES_MIN = 64 << 10


def sites_that_pin(view: ProcessView, pages: Sequence[PinnedPages]) -> tuple[PinningSite, ...]:
    """The call sites that pin most; empty if little is pinned, without reading any block."""
    if sum(int(each.free_bytes.sum()) for each in pages) < _BYTES_MIN:
        return ()
    found = [one for one in pinning_sites(pages, view.maps.live_blocks(view.traced.pid)) if one.stack_id]
    worst = [one for one in found if one.bytes >= _BYTES_MIN][:_SITES_MAX]
    named = view.name([_key(one) for one in worst])
    view.learn_charging()
    sites = []
    for one in worst:
        stack = named[_key(one)]
        blamed = view.traced.charging.charged(_key(one), stack.stack.frames)
        sites.append(
            PinningSite(
                site=stack.fingerprint,
                function=blamed.function if blamed else None,
                module=blamed.module if blamed else None,
                location=blamed.location if blamed else None,
                free_bytes=one.bytes,
                blocks=one.blocks,
            )
        )
    return tuple(sites)


def _key(one: Pinning) -> SiteKey:
    return SiteKey(AllocationKind.HEAP, one.stack_id)
