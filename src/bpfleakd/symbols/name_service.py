"""Finds names of addresses in files, outside of the tracing thread: no caller waits for a file or a name.

    names.names_so_far(owner, module, places)   # and requests the rest
    names.is_pending(owner)              # whether more are to come

Rules:
- Parsers run in unprivileged helpers, one for each file (naming_jobs.py). Results are stored by the file in
  which they were found, names by their text.
- Each process has a budget of CPU time. A process over it gets no further names for a while: its addresses
  are counted, and shown as file and offset. The least recently served user is next, with the least recently
  served process: however many processes one user has, those of others get their names.
- If the lines of a file take too long, only its symbols are read; if these do, they are tried again after a
  while: an overloaded machine loses no name permanently. A name that takes too long to demangle stays as it
  is.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import msgspec
from msgspec import Struct

from bpfleakd.sandbox.channel import HelperFailed
from bpfleakd.sandbox.helpers import Helpers
from bpfleakd.symbols.bounded_cache import BoundedCache
from bpfleakd.symbols.libiberty import is_mangled
from bpfleakd.symbols.module_cache import Module
from bpfleakd.symbols.naming_jobs import (
    DEMANGLE_JOB,
    NAMES_JOB,
    VTABLES_JOB,
    Demangled,
    NamedAddress,
    NamedVtable,
    SourceFrame,
)
from bpfleakd.threads import begin_thread

Place: TypeAlias = tuple[int, int]
"""The address to look up in a file, and the one it represents (naming_jobs.name_addresses)."""

_Key: TypeAlias = tuple[str, int]

_BATCH_MAX = 512
# How long a job is tried at idle priority.
_IDLE_PRIORITY_S = 1.0
_THREADS = 2
# A program with much debug information takes a second or two for the first answer.
BUDGET_S = 8.0
# The share of the passing time that is added.
_BUDGET_SHARE = 0.02
# How much longer than its CPU time a job may take, since a busy machine makes it wait.
_PATIENCE = 4
# A helper's own figure for its time is accepted down to this share of the elapsed time.
_BELIEVED_SHARE = 1 / 16
# Shares of the budget: for a file's lines, its symbols alone, and one name.
_LINES_SHARE, _SYMBOLS_SHARE, _NAME_SHARE = 1 / 2, 1 / 4, 1 / 8
# A file that could not be read, for lack of time for instance, is not read again before.
_AGAIN_S = 60.0
_KNOWN_MAX, _NAMES_MAX, _OWNERS_MAX = 32_768, 8_192, 4_096
_IDLE_S = 5.0
_GIVEN_UP_MAX = 65_536
_HALF_LIFE_S = 60.0
_NOBODY = -1


class _Client(Struct):
    """A process: its requests, by file, and their cost."""

    began_s: float
    budget_s: float
    spent_s: float = 0.0
    busy: int = 0
    given_up: set[_Key] = msgspec.field(default_factory=set)
    wanted: dict[str, tuple[Module, set[Place]]] = msgspec.field(default_factory=dict)

    def allowance_s(self, now_s: float) -> float:
        return self.budget_s + _BUDGET_SHARE * (now_s - self.began_s) - self.spent_s

    def give_up(self, wanted: Mapping[str, tuple[Module, set[Place]]]) -> None:
        """Count addresses that get no names for now."""
        for identity, (_module, places) in wanted.items():
            if len(self.given_up) < _GIVEN_UP_MAX:
                self.given_up |= {(identity, code) for code, _vaddr in places}


class _Cost:
    """The cost of jobs for one process, in seconds of processor time, or else of elapsed time."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self.cpu_s = 0.0
        self._clock_s = clock_s

    @contextlib.contextmanager
    def of_job(self) -> Iterator[Callable[[float], None]]:
        """Charge a job; the yielded function takes the helper's own figure."""
        began_s = self._clock_s()
        said_s: list[float] = []
        try:
            yield said_s.append
        finally:
            took_s = self._clock_s() - began_s
            self.cpu_s += min(took_s, max(*said_s, took_s * _BELIEVED_SHARE)) if said_s else took_s


class _ModuleClosed(Exception):
    """The file was closed to make room for others."""


class NameService:
    """Used by the tracing thread and its own threads; `helpers` run the jobs of naming_jobs.

    `budget_s` is the initial budget of one process, in seconds.
    """

    def __init__(
        self, helpers: Helpers, clock_s: Callable[[], float] = time.monotonic, budget_s: float = BUDGET_S
    ) -> None:
        self._helpers = helpers
        self._clock_s = clock_s
        self._budget_s = budget_s
        self._changed = threading.Condition()
        self._clients: BoundedCache[str, _Client] = BoundedCache(_OWNERS_MAX)
        self._waiting: dict[str, _Client] = {}
        self._users: BoundedCache[str, int] = BoundedCache(_OWNERS_MAX)
        # The cost of each user, half of which is forgotten per interval; and its time.
        self._taken: dict[int, tuple[float, float]] = {}
        self._in_flight: Counter[_Key] = Counter()
        self._known: BoundedCache[_Key, NamedAddress] = BoundedCache(_KNOWN_MAX)
        # The time until which an address is not requested again.
        self._failed: BoundedCache[_Key, float] = BoundedCache(_KNOWN_MAX)
        self._readable: BoundedCache[str, str] = BoundedCache(_NAMES_MAX)
        self._threads = 0
        self._is_closed = False

    def enrol(self, owner: str, user: int) -> None:
        """Register a process and its user; unregistered ones share one user."""
        with self._changed:
            self._users.put(owner, user)

    def names_so_far(self, owner: str, module: Module, places: Collection[Place]) -> dict[int, NamedAddress]:
        """Known names of places in a module, by the address to look up; requests the rest."""
        with self._changed:
            found = {code: self._known.get((module.identity, code)) for code, _vaddr in places}
            missing = {place for place in places if found[place[0]] is None}
            missing = {place for place in missing if not self._has_failed((module.identity, place[0]))}
            if missing:
                self._want(owner, module, missing)
            return {code: named for code, named in found.items() if named is not None}

    def failed(self, module: Module, codes: Collection[int]) -> set[int]:
        """The addresses whose names could not be found, and are currently not searched again."""
        with self._changed:
            return {code for code in codes if self._has_failed((module.identity, code))}

    def is_pending(self, owner: str) -> bool:
        """Whether names that this process requested are still to come."""
        with self._changed:
            client = self._clients.get(owner)
            return client is not None and bool(client.wanted or client.busy)

    def hurry(self) -> None:
        """Find names at usual priority for a while: they are waited for."""
        self._helpers.prepare_soon()

    def is_over_budget(self, owner: str) -> bool:
        """Whether a process gets no further names for now."""
        with self._changed:
            client = self._clients.get(owner)
            return client is not None and client.allowance_s(self._clock_s()) <= 0

    def given_up(self, owner: str) -> int:
        """How many addresses of a process have no names because it was over its budget."""
        with self._changed:
            client = self._clients.get(owner)
            return len(client.given_up) if client else 0

    def wait(self, owner: str, timeout_s: float) -> bool:
        """Wait until nothing is pending; False if it takes longer. Not for the tracing thread."""
        with self._changed:
            return self._changed.wait_for(
                lambda: (c := self._clients.get(owner)) is None or not (c.wanted or c.busy), timeout_s
            )

    def forget(self, owner: str) -> None:
        """Drop the requests of a process."""
        with self._changed:
            self._waiting.pop(owner, None)
            if client := self._clients.get(owner):
                client.wanted.clear()

    def close(self) -> None:
        """End the threads."""
        with self._changed:
            self._is_closed = True
            self._waiting.clear()
            self._changed.notify_all()

    def _has_failed(self, key: _Key) -> bool:
        until_s = self._failed.get(key)
        return until_s is not None and self._clock_s() < until_s

    def _want(self, owner: str, module: Module, places: set[Place]) -> None:
        client = self._clients.get(owner)
        if client is None:
            client = _Client(self._clock_s(), self._budget_s)
            self._clients.put(owner, client)
        if client.allowance_s(self._clock_s()) <= 0:
            client.give_up({module.identity: (module, places)})
            return
        wanted = client.wanted.setdefault(module.identity, (module, set()))[1]
        wanted |= {place for place in places if not self._in_flight[module.identity, place[0]]}
        if not wanted:
            del client.wanted[module.identity]
            return
        self._waiting[owner] = client
        if self._threads < min(_THREADS, len(self._waiting)):
            self._threads += 1
            begin_thread("names", self._serve)
        self._changed.notify()

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed, _IDLE_S)
                if self._is_closed or not self._waiting:
                    self._threads -= 1
                    return
                owner, client, module, places = self._next()
            self._name(owner, client, module, places)

    def _next(self) -> tuple[str, _Client, Module, list[Place]]:
        owner = min(
            self._waiting, key=lambda owner: (self._taken_by(self._user(owner)), self._waiting[owner].spent_s)
        )
        client = self._waiting[owner]
        identity, (module, wanted) = next(iter(client.wanted.items()))
        places = [wanted.pop() for _number in range(min(_BATCH_MAX, len(wanted)))]
        if not wanted:
            del client.wanted[identity]
        if not client.wanted:
            del self._waiting[owner]
        client.busy += 1
        self._in_flight.update((identity, code) for code, _vaddr in places)
        return owner, client, module, places

    def _user(self, owner: str) -> int:
        user = self._users.get(owner)
        return _NOBODY if user is None else user

    def _taken_by(self, user: int) -> float:
        took_s, at_s = self._taken.get(user, (0.0, 0.0))
        return took_s * math.exp2((at_s - self._clock_s()) / _HALF_LIFE_S)

    def _charge(self, owner: str, client: _Client, took_s: float) -> None:
        client.spent_s += took_s
        user = self._user(owner)
        self._taken[user] = self._taken_by(user) + took_s, self._clock_s()
        if len(self._taken) > _OWNERS_MAX:
            del self._taken[min(self._taken, key=self._taken_by)]

    def _name(self, owner: str, client: _Client, module: Module, places: list[Place]) -> None:
        cost = _Cost(self._clock_s)
        found: dict[int, NamedAddress] | None = None
        is_complete = False
        try:
            found, is_complete = self._look_up(module, places, cost)
            left_s = client.allowance_s(self._clock_s()) - cost.cpu_s
            names = self._readable_names(_names_in(found.values()), left_s, cost, _IDLE_PRIORITY_S)
            found = {code: _with_names(one, names) for code, one in found.items()}
        except _ModuleClosed:
            found = None  # The next request opens it again.
        finally:
            with self._changed:
                self._charge(owner, client, cost.cpu_s)
                client.busy -= 1
                for key in ((module.identity, code) for code, _vaddr in places):
                    if found is not None and (is_complete or key[1] in found):
                        self._known.put(key, found.get(key[1]) or NamedAddress(key[1]))
                    elif found is not None:
                        self._failed.put(key, self._clock_s() + _AGAIN_S)
                    del self._in_flight[key]
                if client.allowance_s(self._clock_s()) <= 0:
                    client.give_up(client.wanted)
                    client.wanted.clear()
                    self._waiting.pop(owner, None)
                self._changed.notify_all()

    def _look_up(
        self, module: Module, places: Sequence[Place], cost: _Cost
    ) -> tuple[dict[int, NamedAddress], bool]:
        """Look up by symbols and lines, or by symbols alone if that fails; and whether it did not fail."""
        found: dict[int, NamedAddress] = {}
        is_complete = False
        files = module.duplicate_files()
        if not files:
            raise _ModuleClosed
        try:
            for with_lines, share in ((True, _LINES_SHARE), (False, _SYMBOLS_SHARE)):
                missing = [place for place in places if place[0] not in found]
                arguments = (missing, with_lines and not module.lines_failed)
                try:
                    with cost.of_job() as on_spent:
                        for named in self._helpers.answers(
                            NAMES_JOB,
                            arguments,
                            files,
                            NamedAddress,
                            limit_s=_PATIENCE * share * self._budget_s,
                            answers_max=len(missing),
                            cpu_s=math.ceil(share * self._budget_s),
                            idle_s=_IDLE_PRIORITY_S,
                            on_spent=on_spent,
                        ):
                            found[named.vaddr] = named
                except HelperFailed:
                    module.lines_failed = True
                    continue
                is_complete = True
                break
        finally:
            for file in files:
                os.close(file)
        return found, is_complete

    def readable(self, names: Collection[str], limit_s: float) -> dict[str, str]:
        """Readable forms of mangled names; those that take too long are missing.

        Waits, so it is not for the tracing thread.
        """
        return self._readable_names(names, limit_s, _Cost(self._clock_s))

    def _readable_names(
        self, names: Collection[str], limit_s: float, cost: _Cost, idle_s: float = 0.0
    ) -> dict[str, str]:
        with self._changed:
            readable = {name: self._readable.get(name) for name in names if is_mangled(name)}
        missing = [name for name, text in readable.items() if text is None]
        until_s = cost.cpu_s + limit_s
        while missing and cost.cpu_s < until_s:
            done = 0
            try:
                with cost.of_job() as on_spent:
                    for answer in self._helpers.answers(
                        DEMANGLE_JOB,
                        missing,
                        [],
                        Demangled,
                        limit_s=_PATIENCE * 2 * _NAME_SHARE * self._budget_s,
                        answer_limit_s=_PATIENCE * _NAME_SHARE * self._budget_s,
                        answers_max=len(missing),
                        cpu_s=math.ceil(2 * _NAME_SHARE * self._budget_s),
                        idle_s=idle_s,
                        on_spent=on_spent,
                    ):
                        if done < len(missing):
                            readable[missing[done]] = answer.text
                        done += 1
            except HelperFailed:
                if done < len(missing):
                    readable[missing[done]] = missing[done]
                done += 1
            del missing[:done]
            if not done:
                break
        known = {name: text for name, text in readable.items() if text is not None}
        with self._changed:
            for name, text in known.items():
                self._readable.put(name, text)
        return known

    def vtables(self, file: int, offsets: Sequence[int], limit_s: float) -> dict[int, str]:
        """The mangled classes of vtables with symbols, by offset in the file.

        Waits, like `readable`.
        """
        found = {}
        with contextlib.suppress(HelperFailed):
            for answer in self._helpers.answers(
                VTABLES_JOB, list(offsets), [file], NamedVtable, limit_s=limit_s, answers_max=len(offsets)
            ):
                found[answer.offset] = answer.name
        return found


def _names_in(found: Iterable[NamedAddress]) -> set[str]:
    return {name for one in found for name in (one.symbol, *(f.function for f in one.frames)) if name}


def _with_names(one: NamedAddress, names: dict[str, str]) -> NamedAddress:
    frames = tuple(
        SourceFrame(names.get(frame.function, frame.function) if frame.function else None, frame.location)
        for frame in one.frames
    )
    symbol = names.get(one.symbol, one.symbol) if one.symbol else None
    return NamedAddress(one.vaddr, symbol, frames, one.start)
