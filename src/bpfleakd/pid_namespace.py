"""The pid namespace that the daemon is in: the machine's own, or that of a container."""

from __future__ import annotations

import os
from pathlib import Path

# The inode of the first one: PROC_PID_INIT_INO of include/linux/proc_ns.h.
_INITIAL_INODE = 0xEFFF_FFFC


def own(proc: Path = Path("/proc")) -> os.stat_result:
    """Device and inode identify it."""
    return os.stat(proc / "self/ns/pid")


def is_initial(proc: Path = Path("/proc")) -> bool:
    """Whether it is the machine's own, with all its processes."""
    return own(proc).st_ino == _INITIAL_INODE
