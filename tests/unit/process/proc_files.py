"""A /proc made of files, with the formats that the kernel writes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def a_process(
    proc: Path,
    pid: int = 4_711,
    *,
    comm: bytes = b"shop",
    state: str = "S",
    flags: int = 0x0040_0000,
    start_ticks: int = 8_009,
    exe: str | bytes | None = "/usr/bin/shop",
    threads: Mapping[int, bytes] | None = None,
    status: Mapping[str, str] | None = None,
    maps: bytes = b"",
) -> int:
    """Write the files of a process (proc_pid_stat(5), proc_pid_status(5)); returns its pid.

    `status` changes fields of /proc/PID/status; "" leaves one out.
    """
    directory = proc / str(pid)
    directory.mkdir(parents=True)
    # Fields 3 to 24: state, ppid, pgrp, session, tty, tpgid, flags, 4 faults, 4 times, priority, nice,
    # threads, itrealvalue, start time, vsize, rss.
    after = f"{state} 1 {pid} {pid} 0 -1 {flags} 11 0 13 0 17 19 0 0 20 0 1 0 {start_ticks} 29 31\n"
    (directory / "stat").write_bytes(b"%d (%s) %s" % (pid, comm, after.encode()))
    (directory / "comm").write_bytes(comm + b"\n")
    # The kernel escapes these two in the name, and nothing else.
    name = comm.replace(b"\\", b"\\\\").replace(b"\n", b"\\n")
    fields = {
        "Umask": "0022",
        "State": f"{state} (whatever)",
        "Tgid": str(pid),
        "Pid": str(pid),
        "Uid": "1000\t1001\t1002\t1003",
        "NSpid": str(pid),
        "Threads": "1",
        "Seccomp": "0",
        **(status or {}),
    }
    lines = [f"{field}:\t{value}\n".encode() for field, value in fields.items() if value]
    (directory / "status").write_bytes(b"".join([b"Name:\t", name, b"\n", *lines]))
    (directory / "maps").write_bytes(maps)
    for tid, thread in (threads or {}).items():
        (directory / "task" / str(tid)).mkdir(parents=True)
        (directory / "task" / str(tid) / "comm").write_bytes(thread + b"\n")
    if exe is not None:
        os.symlink(exe, directory / "exe")
    return pid
