"""`bpfleakd --cleanup`: removes a daemon's leftovers, if no daemon will adopt them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from bpfleakd import errors
from bpfleakd.api.listeners import remove_stale
from bpfleakd.kernel.mounts import is_bpffs
from bpfleakd.kernel.pins import MAKING, DirectoryLock, pinned_sets, remove_pins
from bpfleakd.kernel.probes.shared import group_of, remove_events
from bpfleakd.tracing.go.profile_switch import turn_off_profile

_SYSTEMCTL_TIMEOUT_S = 10.0
_EVENTS_TIMEOUT_S = 5.0


def clean_up(bpffs_dir: Path, socket: Path) -> list[str]:
    """Remove all pins, and with them probes and tables, and a dead daemon's socket; returns messages.

    Raises AlreadyRunning while a daemon is alive, AccessDenied without privileges, and KernelError for a pin
    that cannot be removed.
    """
    removed: list[str] = []
    try:
        if bpffs_dir.is_dir() and is_bpffs(bpffs_dir):
            removed += _remove_sets(bpffs_dir)
        if remove_stale(socket):
            removed.append(f"removed the socket {socket}")
    except OSError as error:
        message = f"cannot remove {error.filename}: {error.strerror}"
        if isinstance(error, PermissionError):
            raise errors.AccessDenied(message, "run it as root") from error
        raise errors.KernelError(message) from error
    return removed


def comes_back(unit: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether systemd will start `unit` again after this stop: after a failure, or for a requested restart.

    To be called in ExecStopPost (systemd.exec(5): SERVICE_RESULT), while the job that stops the unit is
    running. If systemd does not answer, the result is False: removing too much costs a report, keeping too
    much costs for ever.
    """
    if environ.get("SERVICE_RESULT", "success") != "success":
        return True
    try:
        jobs = subprocess.run(
            ["systemctl", "list-jobs", "--no-legend", "--plain", "--full", unit],
            capture_output=True,
            text=True,
            timeout=_SYSTEMCTL_TIMEOUT_S,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return False
    # A line is: number, unit, type, state.
    fields = [line.split() for line in jobs.splitlines()]
    return any(len(job) > 2 and job[1] == unit and job[2] in ("start", "restart") for job in fields)


def _remove_sets(bpffs_dir: Path) -> list[str]:
    lock = DirectoryLock(bpffs_dir)
    removed: list[str] = []
    try:
        for pins in pinned_sets(bpffs_dir):
            processes = [process.id.pid for process in pins.processes()]
            for process in pins.processes():
                turn_off_profile(process)
            count = pins.remove()
            traced = f", which traced {', '.join(map(str, processes))}" if processes else ""
            removed.append(f"removed {count} pins in {pins.directory}{traced}")
        half_made = remove_pins(bpffs_dir / MAKING)
        if half_made:
            removed.append(f"removed {half_made} pins of an unfinished start")
        remove_events(group_of(bpffs_dir), wait_s=_EVENTS_TIMEOUT_S)
    finally:
        lock.release(remove=True)
    return removed
