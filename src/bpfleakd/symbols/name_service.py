"""Names of addresses in files, found out beside the tracing: nobody waits here for a file or for a name.

    names.known(owner, module, places)   # what is known now; the rest is asked for
    names.is_pending(owner)              # whether more is to come

Rules:
- Parsers run in helpers without rights, one for each file (naming_jobs.py). What is found is kept by the file
  that it was found in, names by their text.
- Each process has a budget of time. One that is over it gets no further names for a while: its addresses are
  counted, and shown as file and offset. The user who took least lately is served first, and of his processes
  the one that did: however many one user has, the others' get their names.
- A file whose lines take too long is asked for its symbols alone; a name that takes too long stays as it is.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from bpfleakd.sandbox.helpers import HelperFailed, Helpers
from bpfleakd.symbols.bounded_cache import BoundedCache
from bpfleakd.symbols.libiberty import is_mangled
from bpfleakd.symbols.module_cache import Module
from bpfleakd.symbols.naming_jobs import DEMANGLE_JOB, NAMES_JOB, Demangled, NamedAddress, SourceFrame

__all__ = ["NameService", "Place"]

Place: TypeAlias = tuple[int, int]
"""The address to look up in a file, and the one that is meant (naming_jobs.name_addresses)."""

_Key: TypeAlias = tuple[str, int]

_BATCH_MAX = 512
_THREADS = 2
# Of a program with much debug information the first answer takes a second or two.
_BUDGET_S = 8.0
# And then so much of the time that passes.
_BUDGET_SHARE = 0.02
_JOB_LIMIT_S = 4.0
_SYMBOLS_LIMIT_S = 2.0
_NAME_LIMIT_S = 1.0
_KNOWN_MAX, _NAMES_MAX, _OWNERS_MAX = 32_768, 8_192, 4_096
_IDLE_S = 5.0
_GIVEN_UP_MAX = 65_536
_HALF_LIFE_S = 60.0
_NOBODY = -1


@dataclass(slots=True)
class _Client:
    """A process: what it has asked for, by file, and what it has cost."""

    began_s: float
    spent_s: float = 0.0
    busy: int = 0
    given_up: set[_Key] = field(default_factory=set)
    wanted: dict[str, tuple[Module, set[Place]]] = field(default_factory=dict)

    def allowance_s(self, now_s: float) -> float:
        return _BUDGET_S + _BUDGET_SHARE * (now_s - self.began_s) - self.spent_s

    def give_up(self, wanted: Mapping[str, tuple[Module, set[Place]]]) -> None:
        """Count addresses that get no names for now."""
        for identity, (_module, places) in wanted.items():
            if len(self.given_up) < _GIVEN_UP_MAX:
                self.given_up |= {(identity, code) for code, _vaddr in places}


class _ModuleClosed(Exception):
    """The file was closed to make room for others."""


class NameService:
    """Used by the tracing thread and by its own; `helpers` have the jobs of naming_jobs."""

    def __init__(self, helpers: Helpers, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._helpers = helpers
        self._clock_s = clock_s
        self._changed = threading.Condition()
        self._clients: BoundedCache[str, _Client] = BoundedCache(_OWNERS_MAX)
        self._waiting: dict[str, _Client] = {}
        self._users: BoundedCache[str, int] = BoundedCache(_OWNERS_MAX)
        # What each user took, of which half is forgotten in so many seconds; and as of when.
        self._taken: dict[int, tuple[float, float]] = {}
        self._in_flight: Counter[_Key] = Counter()
        self._known: BoundedCache[_Key, NamedAddress] = BoundedCache(_KNOWN_MAX)
        self._readable: BoundedCache[str, str] = BoundedCache(_NAMES_MAX)
        self._threads = 0
        self._is_closed = False

    def enrol(self, owner: str, user: int) -> None:
        """A process and the user that it is of; of those that nobody named, all are of one."""
        with self._changed:
            self._users.put(owner, user)

    def known(self, owner: str, module: Module, places: Collection[Place]) -> dict[int, NamedAddress]:
        """What is known of places in a module, by the address to look up; the rest is asked for."""
        with self._changed:
            found = {code: self._known.get((module.identity, code)) for code, _vaddr in places}
            missing = {place for place in places if found[place[0]] is None}
            if missing:
                self._want(owner, module, missing)
            return {code: named for code, named in found.items() if named is not None}

    def is_pending(self, owner: str) -> bool:
        """Whether names that this process asked for are still to come."""
        with self._changed:
            client = self._clients.get(owner)
            return client is not None and bool(client.wanted or client.busy)

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
        """Drop what a process has asked for."""
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

    def _want(self, owner: str, module: Module, places: set[Place]) -> None:
        client = self._clients.get(owner)
        if client is None:
            client = _Client(self._clock_s())
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
            threading.Thread(target=self._serve, name="names", daemon=True).start()
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
        began_s = self._clock_s()
        found: dict[int, NamedAddress] | None = None
        try:
            found = self._look_up(module, places)
            names = self._demangled(found.values(), client.allowance_s(began_s) - (self._clock_s() - began_s))
            found = {code: _with_names(one, names) for code, one in found.items()}
        except _ModuleClosed:
            found = None  # it is asked for again, and opened anew
        finally:
            with self._changed:
                self._charge(owner, client, self._clock_s() - began_s)
                client.busy -= 1
                for code, _vaddr in places:
                    if found is not None:
                        self._known.put((module.identity, code), found.get(code) or NamedAddress(code))
                    del self._in_flight[module.identity, code]
                if client.allowance_s(self._clock_s()) <= 0:
                    client.give_up(client.wanted)
                    client.wanted.clear()
                    self._waiting.pop(owner, None)
                self._changed.notify_all()

    def _look_up(self, module: Module, places: Sequence[Place]) -> dict[int, NamedAddress]:
        """By symbols and lines; by symbols alone where that fails."""
        found: dict[int, NamedAddress] = {}
        files = module.duplicate_files()
        if not files:
            raise _ModuleClosed
        try:
            for with_lines, limit_s in ((True, _JOB_LIMIT_S), (False, _SYMBOLS_LIMIT_S)):
                missing = [place for place in places if place[0] not in found]
                arguments = (missing, with_lines and not module.lines_failed)
                try:
                    for named in self._helpers.answers(
                        NAMES_JOB,
                        arguments,
                        files,
                        NamedAddress,
                        limit_s=limit_s,
                        answers_max=len(missing),
                    ):
                        found[named.vaddr] = named
                except HelperFailed:
                    module.lines_failed = True
                    continue
                break
        finally:
            for file in files:
                os.close(file)
        return found

    def _demangled(self, found: Iterable[NamedAddress], limit_s: float) -> dict[str, str]:
        """Readable forms of names; those for which no time is left are missing."""
        names = {name for one in found for name in (one.symbol, *(f.function for f in one.frames)) if name}
        with self._changed:
            readable = {name: self._readable.get(name) for name in names if is_mangled(name)}
        missing = [name for name, text in readable.items() if text is None]
        until_s = self._clock_s() + limit_s
        while missing and self._clock_s() < until_s:
            done = 0
            try:
                for answer in self._helpers.answers(
                    DEMANGLE_JOB,
                    missing,
                    [],
                    Demangled,
                    limit_s=2 * _NAME_LIMIT_S,
                    answer_limit_s=_NAME_LIMIT_S,
                    answers_max=len(missing),
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


def _with_names(one: NamedAddress, names: dict[str, str]) -> NamedAddress:
    frames = tuple(
        SourceFrame(names.get(frame.function, frame.function) if frame.function else None, frame.location)
        for frame in one.frames
    )
    return NamedAddress(one.vaddr, names.get(one.symbol, one.symbol) if one.symbol else None, frames)
