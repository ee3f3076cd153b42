"""Uprobe links: from a list of probe points in one file to the links that keep the programs there.

A link is a file descriptor; the breakpoints go when it is closed. Only pages of the given process get
breakpoints: the kernel filters by pid.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence

from bpfleakd.kernel import bpf
from bpfleakd.kernel.abi import FUNCTION_ROLES
from bpfleakd.kernel.programs import AttachMethod, Program, programs_of
from bpfleakd.model import FunctionRole, ProbedFunction

__all__ = ["Linker", "close_all"]

_WITHOUT_RETURN = (FunctionRole.RELEASE, FunctionRole.LIBRARIES_CHANGED)


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
        self._program_fds = program_fds

    def link(self, path: str, points: Sequence[ProbedFunction], pid: int) -> list[int]:
        """Attach to all `points` of the file at `path` in process `pid`; return the links.

        All or none: on an OSError the links made so far are closed.
        """
        # Aliases of one function are one probe.
        roles = {point.offset: point.role for point in points}
        returning = {offset: role for offset, role in roles.items() if role not in _WITHOUT_RETURN}
        links: list[int] = []
        try:
            for program in programs_of(self.method):
                wanted = returning if program.at_return else roles
                if wanted:
                    links.extend(self._link_program(program, path, wanted, pid))
        except OSError:
            close_all(links)
            raise
        return links

    def _link_program(
        self, program: Program, path: str, roles: Mapping[int, FunctionRole], pid: int
    ) -> Iterator[int]:
        program_fd = self._program_fds[program.function]
        cookies = {offset: FUNCTION_ROLES.index(role) for offset, role in sorted(roles.items())}
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
