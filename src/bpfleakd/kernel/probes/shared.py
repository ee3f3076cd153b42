"""Probes that many traced processes share.

A link belongs to one process, and at a breakpoint the kernel invokes the links of all processes for that
file, one by one: each further process with the same C library makes every call of the others more expensive
(bench/README.md). It invokes a tracing event (tracefs, uprobe_events) once, for all processes that have a
perf event of it open.

Rules:
  - A program is linked to a tracing event once, through the perf event of an exited process: the anchor. The
    perf events of traced processes create the breakpoints, and remove them when they are closed.
  - A map holds the perf events of a process, in place of links: it can be pinned. Closing it closes them, but
    the kernel does so some hundredths of a second later.
  - The name of a tracing event describes it completely. Its anchor is pinned under the same name in
    `directory`; an event without one is a leftover.
  - Some seconds after the last process of a file, its anchors are removed, and its events as soon as they are
    no longer open. For each, the kernel waits until no task can be in its code, a second or two together, in
    which no attach is possible: so this does not happen between one short process and the next.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import signal
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct

from bpfleakd.kernel import bpf
from bpfleakd.kernel.mounts import ensure_tracefs
from bpfleakd.threads import usual_priority

InodeKey: TypeAlias = tuple[int, int]
"""Device and inode of a file."""

_TRACEFS = Path("/sys/kernel/tracing")
_PAUSE_S = 0.02
_REMOVAL_TIMEOUT_S = 10.0
_LINGER_S = 5.0
# The kernel waits for a grace period for each event that it removes: some 10 ms, more on a busy machine.
_SWEEP_S = 0.05


class SharedKind(StrEnum):
    """Where a program runs; a letter for the names of events."""

    ENTRY = "e"
    RETURN = "r"
    STATIC = "s"
    """A static probe of a sampler inside the process, with AttachMethod.PERF."""


class SharedPoint(Struct, frozen=True):
    """Where a program runs: a file offset, and its cookie.

    `semaphore` is the file offset of the counter that is incremented in processes with the probe, or 0.
    """

    offset: int
    cookie: int
    kind: SharedKind
    semaphore: int = 0

    def name_in(self, file: InodeKey) -> str:
        """The name of the tracing event."""
        described = f"{self.offset:x}_{self.cookie:x}"
        if self.semaphore:
            # Three such numbers may be too long for a name.
            described += f"_{self.semaphore:x}"
            described = hashlib.blake2b(described.encode(), digest_size=12).hexdigest()
        return f"{_prefix(file)}{self.kind}{described}"


def group_of(bpffs_dir: Path) -> str:
    """The group of tracing events of the daemon that uses a bpffs_dir."""
    return "bpfleakd_" + hashlib.blake2b(os.fsencode(bpffs_dir), digest_size=6).hexdigest()


def remove_events(group: str, names: Collection[str] | None = None, wait_s: float = 0.0) -> set[str]:
    """Remove tracing events, or a whole group with `names` None; returns those that are still open.

    The kernel closes the perf events of a map some time after the map: this waits for at most `wait_s`.
    """
    left = set(_defined(group) if names is None else names)
    deadline = time.monotonic() + wait_s
    while True:
        left = {name for name in left if not _remove(group, name)}
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(_PAUSE_S)


class SharedProbes:
    """The tracing events of one daemon. `programs` are descriptors that the caller owns."""

    def __init__(
        self,
        programs: Mapping[SharedKind, int],
        group: str,
        directory: Path,
        *,
        linger_s: float = _LINGER_S,
    ) -> None:
        self._programs = programs
        self._group = group
        self._directory = directory
        self._linger_s = linger_s
        self._users: dict[InodeKey, set[int]] = {}
        # Files without processes, and since when.
        self._unused: dict[InodeKey, float] = {}
        self._leaving: set[str] = set()

    def link(self, file: InodeKey, path: str, points: Sequence[SharedPoint], pid: int) -> int:
        """Run the programs at `points` of a file in process `pid` too; returns what keeps them attached.

        Points are attached in their order. Raises OSError, without any change for the process.
        """
        try:
            self._make_anchors(file, path, points)
            probes = bpf.map_create(
                bpf.MapType.PERF_EVENT_ARRAY,
                4,
                4,
                len(points),
                bpf.MAP_FLAG_PRESERVE_ELEMS,
                "bpfleakd_probes",
            )
            try:
                for index, point in enumerate(points):
                    event = bpf.open_shared_event(self._number(point.name_in(file)), pid)
                    try:
                        bpf.map_update(probes, bpf.u32(index), bpf.u32(event))
                    finally:
                        os.close(event)
            except OSError:
                os.close(probes)
                raise
        except OSError:
            self._note_unused(file)
            raise
        self.note(file, pid)
        return probes

    def note(self, file: InodeKey, pid: int) -> None:
        """Register that a process has probes in a file, made by an earlier daemon."""
        self._users.setdefault(file, set()).add(pid)
        self._unused.pop(file, None)

    def anchor_count(self, file: InodeKey) -> int:
        """The number of probes of a file that have a program."""
        if not self._directory.is_dir():
            return 0
        return sum(pin.name.startswith(_prefix(file)) for pin in self._directory.iterdir())

    def forget(self, pid: int) -> None:
        """Forget a process, whose perf events are all closed."""
        for file in [file for file, users in self._users.items() if pid in users]:
            self._users[file].discard(pid)
            self._note_unused(file)
        self.sweep()

    def drop_unused(self) -> None:
        """Drop the probes that no process uses, such as an earlier daemon's leftovers."""
        self._unused.clear()
        self._drop_others()
        self.sweep()

    def sweep(self) -> None:
        """Drop files that have been unused for a while; called at every tick."""
        now = time.monotonic()
        lingering = {file: since for file, since in self._unused.items() if now - since < self._linger_s}
        if len(lingering) < len(self._unused):
            self._unused = lingering
            self._drop_others()
        until = now + _SWEEP_S
        for name in list(self._leaving):
            if time.monotonic() > until:
                break
            if _remove(self._group, name):
                self._leaving.discard(name)

    def close(self) -> None:
        """Remove all events; their pins must be gone."""
        remove_events(self._group, wait_s=_REMOVAL_TIMEOUT_S)

    def _make_anchors(self, file: InodeKey, path: str, points: Sequence[SharedPoint]) -> None:
        names = {point: point.name_in(file) for point in points}
        missing = [point for point in points if not (self._directory / names[point]).exists()]
        if not missing:
            return
        ensure_tracefs()
        self._directory.mkdir(exist_ok=True)
        with _stopped_process() as pid:
            for point in missing:
                self._define(names[point], path, point)
                event = bpf.open_shared_event(self._number(names[point]), pid)
                link = bpf.link_perf_event(self._programs[point.kind], event, point.cookie)
                try:
                    bpf.object_pin(link, self._directory / names[point])
                finally:
                    os.close(link)

    def _define(self, name: str, path: str, point: SharedPoint) -> None:
        self._leaving.discard(name)
        # An event of this name is this one, not yet removed.
        if self._event(name).is_dir():
            return
        if any(character.isspace() for character in path):
            raise OSError(errno.EINVAL, "tracefs accepts no path with spaces", path)
        kind = "r" if point.kind is SharedKind.RETURN else "p"
        counted = f"({point.semaphore:#x})" if point.semaphore else ""
        _command(f"{kind}:{self._group}/{name} {path}:{point.offset:#x}{counted}")

    def _event(self, name: str) -> Path:
        return _TRACEFS / "events" / self._group / name

    def _number(self, name: str) -> int:
        return int((self._event(name) / "id").read_text())

    def _note_unused(self, file: InodeKey) -> None:
        if self._users.get(file):
            return
        self._users.pop(file, None)
        self._unused.setdefault(file, time.monotonic())

    def _drop_others(self) -> None:
        """Drop the probes of files that neither are in use nor were a moment ago."""
        kept = tuple(map(_prefix, (*self._users, *self._unused)))
        anchored = [pin.name for pin in self._directory.iterdir()] if self._directory.is_dir() else []
        for name in {*_defined(self._group), *anchored}:
            if not name.startswith(kept):
                with contextlib.suppress(FileNotFoundError):
                    (self._directory / name).unlink()
                self._leaving.add(name)


def _prefix(file: InodeKey) -> str:
    device, inode = file
    return f"f{device:x}_{inode:x}_"


def _defined(group: str) -> list[str]:
    try:
        return [path.name for path in (_TRACEFS / "events" / group).iterdir() if path.is_dir()]
    except OSError:
        return []


def _remove(group: str, name: str) -> bool:
    """Whether it is gone."""
    try:
        _command(f"-:{group}/{name}")
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _command(text: str) -> None:
    fd = os.open(_TRACEFS / "uprobe_events", os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    try:
        with usual_priority():
            os.write(fd, f"{text}\n".encode())
    finally:
        os.close(fd)


@contextlib.contextmanager
def _stopped_process() -> Iterator[int]:
    """Yield the pid of an idle process, and end it afterwards."""
    with usual_priority():
        process = subprocess.Popen(["sleep", "60"], stdin=subprocess.DEVNULL)
    try:
        # It is stopped, so it never reaches the probes that it gets.
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        yield process.pid
    finally:
        process.kill()
        process.wait()
