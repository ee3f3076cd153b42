"""The identities of a traced process' call sites, and their blamed functions.

Rules:
  - A site's identity is its fingerprint, which is made of names, not of addresses. It is settled once all its
    frames have names, and kept then, also over a restart: code of a JIT may be gone by that time.
  - Until then it is provisional: what has the same names so far is the same site, as reports show it. The JIT
    may write its names late, or never: such a site is looked at again after pauses that double.
  - A function of a stripped file is identified by where it begins, which its call frame information says.
  - Naming a stack takes up to a millisecond, so some are settled at each evaluation, the largest first.
  - Callers are learnt from the busiest sites, again and again, without names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from bpfleakd.analysis.callers import NO_RULES, Callers, ChargeRules, charged_frame
from bpfleakd.analysis.fingerprint import function_identity
from bpfleakd.model.code.managed_frame import frame_places
from bpfleakd.model.code.stack import Frame, NamedStack, RawStack, Stack
from bpfleakd.model.site import AllocationKind, SiteKey
from bpfleakd.table.site_table import COUNTERS, SiteTable
from bpfleakd.verdicts.merged_histories import Units

_LIVE_COUNT, _ALLOCATED_COUNT = COUNTERS.index("live_count"), COUNTERS.index("allocated_count")
# The busiest sites, which show the wrappers, with as many addresses each: 400 KB for a process with many.
_STACKS_MAX = 1_024
_DEPTH = 16
# Fewer freed blocks prove nothing.
_GIVEN_BACK_MIN = 4
_HELD_SHARE = 0.1
_SETTLED_AT_ONCE = 32
# Evaluations between two looks at a site without all names.
_PAUSE_MIN, _PAUSE_MAX = 2, 64
# More sites than this come from one place; each is checked again at each evaluation.
_IDENTITIES_MAX = 4_096
# Reports ask for the same few sites again and again.
_CHARGED_MAX = 256
_NO_ROWS = np.zeros(0, np.intp)


class SiteIdentity(Struct, frozen=True):
    """A site's identity, whatever its address: its fingerprint, and the function it is charged to.

    `module` and `function` are those of `function_identity`.
    """

    fingerprint: str
    module: str | None
    function: str | None


class _Provisional(Struct, frozen=True):
    """An identity from the names known so far; evaluations are counted from the first."""

    identity: SiteIdentity
    pause: int
    due: int


class _Charged(Struct, frozen=True):
    """The frame that a site is charged to, among these frames."""

    frames: tuple[Frame, ...]
    frame: Frame | None


class SiteCharging:
    """The identities of the sites of one process (some from an earlier daemon), and its wrappers."""

    def __init__(
        self, rules: ChargeRules = NO_RULES, identities: dict[SiteKey, SiteIdentity] | None = None
    ) -> None:
        self._rules = rules
        self._callers = Callers()
        self._stacks: dict[SiteKey, tuple[int, ...]] = {}
        self._given_back: set[SiteKey] = set()
        self._identities = dict(identities or {})
        self._provisional: dict[SiteKey, _Provisional] = {}
        self._evaluations = 0
        self._charged: dict[SiteKey, _Charged] = {}

    @property
    def identities(self) -> dict[SiteKey, SiteIdentity]:
        """The settled identities."""
        return self._identities

    def forget(self, keys: Iterable[SiteKey]) -> None:
        """Forget sites that are no longer in the table."""
        for key in keys:
            self._identities.pop(key, None)
            self._provisional.pop(key, None)
            self._charged.pop(key, None)

    def charged(self, key: SiteKey, frames: tuple[Frame, ...]) -> Frame | None:
        """The frame that a site is charged to; None for an empty stack."""
        known = self._charged.get(key)
        if known is not None and known.frames is frames:
            return known.frame
        is_given_back = key in self._given_back
        frame = charged_frame(frames, self._callers, self._rules, is_given_back=is_given_back)
        if known is not None or len(self._charged) < _CHARGED_MAX:
            self._charged[key] = _Charged(frames, frame)
        return frame

    def fingerprint(self, key: SiteKey) -> str | None:
        """The fingerprint of a site, once it is settled."""
        known = self._identities.get(key)
        return known.fingerprint if known else None

    def learn(self, table: SiteTable, stack_of: Callable[[SiteKey], RawStack]) -> None:
        """Find the callers in the busiest sites, and which of them free their blocks."""
        columns = table.columns()
        allocated, live = columns[:, _ALLOCATED_COUNT], columns[:, _LIVE_COUNT]
        busiest = np.argsort(-allocated, kind="stable")[:_STACKS_MAX]
        gives_back = (live <= _HELD_SHARE * allocated) & (allocated >= _GIVEN_BACK_MIN)
        keys = table.keys
        stacks: dict[SiteKey, tuple[int, ...]] = {}
        for row in busiest.tolist():
            key = keys[row]
            stacks[key] = self._stacks.get(key) or tuple(frame_places(stack_of(key).addresses)[:_DEPTH])
        given_back = {keys[row] for row in busiest[gives_back[busiest]].tolist()}
        if stacks.keys() == self._stacks.keys() and given_back == self._given_back:
            return
        self._stacks, self._given_back = stacks, given_back
        self._charged.clear()
        self._callers = Callers(
            (stacks[keys[row]], int(allocated[row]), keys[row] in self._given_back)
            for row in busiest.tolist()
        )

    def unsettled(
        self, table: SiteTable, rows: NDArray[np.intp], freed_rows: NDArray[np.intp] = _NO_ROWS
    ) -> list[SiteKey]:
        """Some of the sites in these rows, in order, whose identity is to be checked now.

        `freed_rows` have no live blocks. They come last, and leave half the room to the others.
        """
        self._evaluations += 1
        known_count = len(self._identities) + len(self._provisional)
        has_room = known_count < _IDENTITIES_MAX
        if known_count < _IDENTITIES_MAX // 2:
            rows = np.concatenate([rows, freed_rows])
        due = {key for key, known in self._provisional.items() if known.due <= self._evaluations}
        if not has_room and not due:
            return []
        keys = table.keys
        found = (
            keys[row] for row in rows.tolist() if keys[row] in due or (has_room and self._is_new(keys[row]))
        )
        return [key for key, _ in zip(found, range(_SETTLED_AT_ONCE), strict=False)]

    def _is_new(self, key: SiteKey) -> bool:
        return key not in self._identities and key not in self._provisional

    def settle(self, named: dict[SiteKey, NamedStack]) -> None:
        """Store the identities of these sites: for good if they have all their names."""
        for key, site in named.items():
            if not site.stack.frames or site.stack.pending:
                continue
            fingerprint = self.fingerprint(key) or site.fingerprint
            identity = SiteIdentity(fingerprint, *self._charged_function(key, site.stack))
            before = self._provisional.pop(key, None)
            if site.final:
                self._identities[key] = identity
            else:
                pause = min(2 * before.pause, _PAUSE_MAX) if before else _PAUSE_MIN
                self._provisional[key] = _Provisional(identity, pause, self._evaluations + pause)

    def _charged_function(self, key: SiteKey, stack: Stack) -> tuple[str | None, str | None]:
        frame = self.charged(key, stack.frames)
        known = zip(stack.frames, stack.build_ids, strict=True)
        return next((function_identity(*one) for one in known if one[0] is frame), (None, None))

    def units(self, table: SiteTable) -> Units | None:
        """Rows that are the same site; None if there are none."""
        rows = self._by_row(table)
        return Units.of({row: (key.kind, known.fingerprint) for row, key, known in rows}, len(table))

    def functions(self, table: SiteTable) -> Units | None:
        """Rows that are blamed on the same function; None if there are none."""
        named = (each for each in self._by_row(table) if each[2].function)
        return Units.of(
            {row: (key.kind, known.module, known.function) for row, key, known in named}, len(table)
        )

    def rows_by_site(self, table: SiteTable) -> dict[tuple[AllocationKind, str], list[int]]:
        """The rows of each site with a known identity, by kind and fingerprint."""
        found: dict[tuple[AllocationKind, str], list[int]] = {}
        for row, key, known in self._by_row(table):
            found.setdefault((key.kind, known.fingerprint), []).append(row)
        return found

    def _by_row(self, table: SiteTable) -> list[tuple[int, SiteKey, SiteIdentity]]:
        provisional = ((key, one.identity) for key, one in self._provisional.items())
        known = chain(self._identities.items(), provisional)
        rows = ((table.row_of(key), key, identity) for key, identity in known)
        return [each for each in rows if each[0] >= 0]
