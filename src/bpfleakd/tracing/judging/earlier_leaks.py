"""Leaks of an earlier window of automatic tracing, for the next window of the same process.

A window of a minute is hardly enough for a verdict of leak. So the next one continues with the results of the
first:
  - A call site that leaked when its process was detached is a leak from the beginning, at the earlier rate.
  - It stays one while it grows, until new evidence confirms it; or, while none of its blocks is recorded,
    until so many would have been recorded that their absence is evidence (see `seen_leaks`).
  - It is no longer one once its old blocks die, or are replaced. Sites are identified by kind and
    fingerprint, which persist, and processes by their ProcessId.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import TypeAlias

from bpfleakd.model.process import ProcessId
from bpfleakd.model.site import AllocationKind, SiteKey
from bpfleakd.table.site_table import SiteTable
from bpfleakd.tracing.site_charging import SiteIdentity
from bpfleakd.verdicts.seen_leaks import SeenLeak

KnownSite: TypeAlias = tuple[AllocationKind, str]

# The oldest entry makes room.
_PROCESSES_MAX = 1_024
_SITES_MAX = 256


class EarlierLeaks:
    """The leaks of processes that are currently not traced."""

    def __init__(self) -> None:
        self._leaks: OrderedDict[ProcessId, Mapping[KnownSite, SeenLeak]] = OrderedDict()

    def keep(self, process: ProcessId, leaks: Mapping[KnownSite, SeenLeak]) -> None:
        """Store the leaks of a process that is being detached."""
        self._leaks.pop(process, None)
        if leaks:
            self._leaks[process] = dict(list(leaks.items())[:_SITES_MAX])
        while len(self._leaks) > _PROCESSES_MAX:
            self._leaks.popitem(last=False)

    def take(self, process: ProcessId) -> Mapping[KnownSite, SeenLeak]:
        """Remove the leaks of a process and return them."""
        return self._leaks.pop(process, {})


def leaks_by_site(
    table: SiteTable, identities: Mapping[SiteKey, SiteIdentity], leaks: Mapping[int, SeenLeak]
) -> dict[KnownSite, SeenLeak]:
    """Leaks by row of the table converted to leaks by site identity; without unsettled sites."""
    keys = table.keys
    found = ((keys[row], leak) for row, leak in leaks.items())
    return {(key.kind, identities[key].fingerprint): leak for key, leak in found if key in identities}


class ExpectedLeaks:
    """Leaks of an earlier window whose site has not appeared yet."""

    def __init__(self, leaks: Mapping[KnownSite, SeenLeak] | None = None) -> None:
        self._leaks = dict(leaks or {})

    def take(self, table: SiteTable, identities: Mapping[SiteKey, SiteIdentity]) -> dict[int, SeenLeak]:
        """Remove those whose site has appeared, with a settled identity; returns them by row."""
        if not self._leaks:
            return {}
        appeared = {}
        for key, identity in identities.items():
            row = table.row_of(key)
            leak = self._leaks.pop((key.kind, identity.fingerprint), None) if row >= 0 else None
            if leak is not None:
                appeared[row] = leak
        return appeared
