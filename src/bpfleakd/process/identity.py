"""What a process belongs to: user, cgroup, systemd unit, container, Kubernetes pod.

All of it is read from text: /proc/PID/status and /proc/PID/cgroup (cgroups(7)). It needs no container
runtime, so it works for all of them, and costs two small files. The names of cgroups, by runtime:

    docker       …/docker-ID.scope                        …/docker/ID
    containerd   …/cri-containerd-ID.scope                …/podUID/ID     …podUID.slice:cri-containerd:ID
    CRI-O        …/crio-ID.scope                          …/crio-ID
    podman       …/libpod-ID.scope[/container]            …/libpod_parent/libpod-ID
    Kubernetes   …/kubepods-burstable-podUID.slice/…      …/kubepods/burstable/podUID/…

The helpers of containers (crio-conmon-ID, libpod-conmon-ID) are not in them.
"""

from __future__ import annotations

import pwd
import re
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from bpfleakd.model.process import ProcessLabels
from bpfleakd.printable import printable, shortened

PROC = Path("/proc")

_LABEL_CHARS = 256

_CONTAINER = re.compile(
    r"(?:.*:)?(?:(?:docker|cri-containerd|containerd|nerdctl|crio|libpod)[-:])?([0-9a-f]{64})(?:\.scope)?"
)
_POD = re.compile(
    r"kubepods.*pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?![0-9a-f])", re.DOTALL
)
_UNIT = re.compile(r".+\.(?:service|scope|socket|mount|swap)")


def read_labels(pid: int, proc: Path = PROC, user_of: Callable[[int], str] | None = None) -> ProcessLabels:
    """The labels of a process, all None if it is gone. `user_of` returns the name of a uid."""
    uid = effective_uid(pid, proc)
    user = None if uid is None else (user_of or user_name)(uid)
    try:
        text = (proc / str(pid) / "cgroup").read_bytes().decode(errors="surrogateescape")
    except OSError:
        return ProcessLabels(user=user)
    return parse_cgroup(text, user)


def parse_cgroup(text: str, user: str | None = None) -> ProcessLabels:
    """Parse /proc/PID/cgroup; `user` is used unchanged."""
    path = _path(text)
    if path is None:
        return ProcessLabels(user=user)
    parts = path.split("/")
    containers = [found[1] for part in parts if (found := _CONTAINER.fullmatch(part))]
    units = [part for part in parts if _UNIT.fullmatch(part)]
    pod = _POD.search(path)
    return ProcessLabels(
        user=user,
        cgroup=_safe(path),
        unit=_safe(units[-1]) if units else None,
        container=containers[-1] if containers else None,
        pod=pod[1].replace("_", "-") if pod else None,
    )


def effective_uid(pid: int, proc: Path = PROC) -> int | None:
    """The effective uid of a process; None if it is gone."""
    # Not the owner of /proc/PID: that is root for a process that must not be dumped.
    try:
        status = (proc / str(pid) / "status").read_bytes()
    except OSError:
        return None
    found = re.search(rb"^Uid:\t\d+\t(\d+)", status, re.MULTILINE)
    return int(found[1]) if found else None


@lru_cache(maxsize=1024)
def user_name(uid: int) -> str:
    """The name of a user of this host, or the uid in digits."""
    try:
        return _safe(pwd.getpwuid(uid).pw_name)
    except (KeyError, OverflowError):
        return str(uid)


def _path(text: str) -> str | None:
    """The most informative path: that of the unified hierarchy, else of systemd's, else the longest."""
    paths: dict[str, str] = {}
    # Only a newline ends a line; the kernel escapes newlines in names.
    for line in text.split("\n"):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if path.startswith("/"):
            paths["unified" if number == "0" else controllers] = path
    for hierarchy in ("unified", "name=systemd"):
        if paths.get(hierarchy, "/") != "/":
            return paths[hierarchy]
    return max(paths.values(), key=len, default=None)


def _safe(text: str) -> str:
    return shortened(printable(text), _LABEL_CHARS, keep_end=True)
