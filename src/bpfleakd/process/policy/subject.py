"""A process as input of the policy: it reads each file of /proc once, when a rule needs it."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path

from bpfleakd.model.process import ProcessLabels
from bpfleakd.printable import printable
from bpfleakd.process.identity import effective_uid, parse_cgroup, user_name
from bpfleakd.process.process import is_hosts_init
from bpfleakd.process.processes import ProcessStat
from bpfleakd.process.reading.reads import read_file

PROC = Path("/proc")
_CMDLINE_BYTES = 4096


class ProcSubject:
    """A process of /proc that `read_stat` found; implements Subject.

    Texts are printable. A text is None if it cannot be read, because the process has just ended.
    """

    def __init__(self, stat: ProcessStat, proc: Path = PROC) -> None:
        self._stat = stat
        self._directory = proc / str(stat.id.pid)
        self._proc = proc

    @property
    def pid(self) -> int:
        return self._stat.id.pid

    @property
    def hosts_init(self) -> bool:
        return is_hosts_init(self.pid)

    @property
    def kernel_thread(self) -> bool:
        return self._stat.kernel_thread

    @property
    def comm(self) -> str:
        return self._stat.comm

    @cached_property
    def exe(self) -> str | None:
        try:
            return printable(os.readlink(self._directory / "exe").removesuffix(" (deleted)"))
        except OSError:
            return None

    @cached_property
    def cmdline(self) -> str | None:
        try:
            raw = read_file(self.pid, self._directory / "cmdline", _CMDLINE_BYTES)
        except OSError:
            return None
        return printable(raw.rstrip(b"\0").replace(b"\0", b" ").decode(errors="surrogateescape"))

    @cached_property
    def uid(self) -> int | None:
        return effective_uid(self.pid, self._proc)

    @property
    def user(self) -> str | None:
        return None if self.uid is None else user_name(self.uid)

    @property
    def unit(self) -> str | None:
        return self._labels.unit

    @property
    def cgroup(self) -> str | None:
        return self._labels.cgroup

    @property
    def container(self) -> str | None:
        return self._labels.container

    @cached_property
    def _labels(self) -> ProcessLabels:
        try:
            return parse_cgroup((self._directory / "cgroup").read_bytes().decode(errors="surrogateescape"))
        except OSError:
            return ProcessLabels()
