"""Uprobe links: from a list of probe points in one file to the links that keep the programs there.

A link is a file descriptor; the breakpoints go when it is closed. Only pages of the given process get
breakpoints: the kernel filters by pid.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from bpfleakd.kernel import bpf
from bpfleakd.kernel.abi import cookie_of
from bpfleakd.kernel.programs import AttachMethod, Program, programs_of
from bpfleakd.model.probe import FunctionRole

__all__ = ["Linker", "ProbePoint", "close_all"]

_WITHOUT_RETURN = (FunctionRole.RELEASE, FunctionRole.LIBRARIES_CHANGED)


def close_all(descriptors: Sequence[int]) -> None:
    """Close descriptors, whatever each of them says."""
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)


@dataclass(frozen=True, slots=True)
class ProbePoint:
    """A breakpoint to be: file offset, what the function does, and the registers of what that is about.

    A function that frees may do so by calling another with a probe: `calls_release`; `calls_allocator` says
    the same of one that allocates.
    """

    offset: int
    role: FunctionRole
    registers: tuple[str, ...]
    calls_release: bool = False
    calls_allocator: bool = False

    def cookie(self, slot: int) -> int:
        """What the programs are told there, of the process in a slot."""
        return cookie_of(
            self.role,
            self.registers,
            slot=slot,
            calls_release=self.calls_release,
            calls_allocator=self.calls_allocator,
        )


class Linker:
    """Attaches loaded programs by one method.

    `program_fds` maps the C function of every program of `programs_of(method)` to its descriptor.
    """

    def __init__(self, method: AttachMethod, program_fds: Mapping[str, int]) -> None:
        self.method = method
        self._program_fds = program_fds

    def link(self, path: str, points: Sequence[ProbePoint], pid: int, slot: int) -> list[int]:
        """Attach to all `points` of the file at `path` in process `pid`; return the links.

        `slot` is the process' place in the maps (Maps.slot_of).

        All or none: on an OSError the links made so far are closed.
        """
        # Aliases of one function are one probe.
        wanted = {point.offset: point for point in points}
        returning = {o: point for o, point in wanted.items() if point.role not in _WITHOUT_RETURN}
        links: list[int] = []
        try:
            # The return first: a call that is entered afterwards is seen to end.
            for program in reversed(programs_of(self.method)):
                chosen = returning if program.at_return else wanted
                if chosen:
                    links.extend(self._link_program(program, path, chosen, pid, slot))
        except OSError:
            close_all(links)
            raise
        return links

    def _link_program(
        self, program: Program, path: str, points: Mapping[int, ProbePoint], pid: int, slot: int
    ) -> Iterator[int]:
        program_fd = self._program_fds[program.function]
        # Frees first: of a block that is recorded, the free is then recorded as well.
        order = sorted(points, key=lambda offset: (points[offset].role is not FunctionRole.RELEASE, offset))
        cookies = {offset: points[offset].cookie(slot) for offset in order}
        if self.method is not AttachMethod.PERF:
            yield bpf.link_uprobe_multi(
                program_fd, program.attach_type, path, cookies, pid, program.at_return
            )
            return
        for offset, cookie in cookies.items():
            event_fd = bpf.open_uprobe_event(path, offset, pid, program.at_return)
            try:
                yield bpf.link_perf_event(program_fd, event_fd, cookie)
            finally:
                os.close(event_fd)
