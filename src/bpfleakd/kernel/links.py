"""Uprobe links: from a list of probe points in one file to the links that keep the programs there.

A link is a file descriptor; the breakpoints go when it is closed. Only pages of the given process get
breakpoints: the kernel filters by pid.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence

from bpfleakd.kernel import bpf
from bpfleakd.kernel.programs import AttachMethod, Program, programs_of
from bpfleakd.model import FunctionRole, ProbedFunction

__all__ = ["Linker", "close_all"]


def close_all(descriptors: Sequence[int]) -> None:
    """Close descriptors, whatever each of them says."""
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)


class Linker:
    """Attaches loaded programs by one method.

    `program_fds` maps the C function of every program of `programs_of(method)` to its descriptor.
    """

    def __init__(self, method: AttachMethod, program_fds: Mapping[str, int]) -> None:
        self.method = method
        self._programs = programs_of(method)
        self._program_fds = program_fds

    def link(self, path: str, points: Sequence[ProbedFunction], pid: int) -> list[int]:
        """Attach to all `points` of the file at `path` in process `pid`, frees first; return the links.

        All or none: on an OSError the links made so far are closed.
        """
        links: list[int] = []
        try:
            for program in self._programs:
                offsets = _offsets_for(program, points)
                if offsets:
                    links.extend(self._link_program(program, path, offsets, pid))
        except OSError:
            close_all(links)
            raise
        return links

    def _link_program(self, program: Program, path: str, offsets: Sequence[int], pid: int) -> Iterator[int]:
        program_fd = self._program_fds[program.function]
        at_return = program.role is None
        if self.method is not AttachMethod.PERF:
            yield bpf.link_uprobe_multi(program_fd, program.attach_type, path, offsets, pid, at_return)
            return
        for offset in offsets:
            event_fd = bpf.open_uprobe_event(path, offset, pid, at_return)
            try:
                yield bpf.link_perf_event(program_fd, event_fd)
            finally:
                os.close(event_fd)


def _offsets_for(program: Program, points: Sequence[ProbedFunction]) -> list[int]:
    """The offsets a program belongs at; aliases of one function are one offset."""
    if program.role is None:
        wanted = [point for point in points if point.role is not FunctionRole.RELEASE]
    else:
        wanted = [point for point in points if point.role is program.role]
    return sorted({point.offset for point in wanted})
