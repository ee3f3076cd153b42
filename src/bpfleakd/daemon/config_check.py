"""`bpfleakd --check-config`: reports what a correct file names and this machine lacks.

It creates and changes nothing, and a daemon may be running: a port in use is not an error.
"""

from __future__ import annotations

import grp
import os
import pwd
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from bpfleakd.config import Config
from bpfleakd.errors import ConfigError
from bpfleakd.kernel.mounts import BPFFS_MOUNT_POINT, is_bpffs
from bpfleakd.private_directory import refuse_foreign_path
from bpfleakd.suppressions import read_suppressions

# proc(5): /proc/PID/comm.
_COMM_BYTES_MAX = 15


def problems(config: Config) -> list[str]:
    """One sentence for each problem, beginning with the key."""
    return [
        *_socket(config),
        *_bpffs(config.bpffs_dir),
        *_private("cache_dir", config.cache_dir),
        *_private("state.dir", config.state.dir),
        *_suppressions(config),
        *_address(config),
        *_rules(config),
    ]


def _socket(config: Config) -> Iterator[str]:
    path = config.socket
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            yield f"socket: {path} exists and is not a socket"
    except FileNotFoundError:
        above = _existing(path.parent)
        if not above.is_dir():
            yield f"socket: {above} is not a directory"
        elif _is_read_only(above):
            yield f"socket: {above} is read-only"
    except OSError as error:
        yield f"socket: {path}: {error.strerror}"
    group = config.socket_group
    # The default group may be missing: then only root can use the socket.
    if group is not None and group != Config().socket_group:
        try:
            grp.getgrnam(group)
        except KeyError:
            yield f"socket_group: there is no group {group}"


def _bpffs(directory: Path) -> Iterator[str]:
    if is_bpffs(directory):
        if not _existing(directory).is_dir():
            yield f"bpffs_dir: {_existing(directory)} is not a directory"
    # The daemon mounts this one itself.
    elif not directory.is_relative_to(BPFFS_MOUNT_POINT):
        yield f"bpffs_dir: {directory} is not in a bpf file system"


def _private(key: str, directory: Path | None) -> Iterator[str]:
    if directory is None:
        return
    above = _existing(directory)
    if _is_read_only(above):
        yield f"{key}: {above} is read-only"
        return
    try:
        refuse_foreign_path(above, {os.geteuid()})
    except OSError as error:
        yield f"{key}: {directory}: {error.strerror}"
    except ValueError as error:
        yield f"{key}: {error}"


def _suppressions(config: Config) -> Iterator[str]:
    for path in config.suppressions:
        try:
            read_suppressions([path])
        except ConfigError as error:
            yield f"suppressions: {error.message}"


def _address(config: Config) -> Iterator[str]:
    if not config.metrics.enabled:
        return
    address = config.metrics.address
    try:
        family, kind, _, _, where = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as trial:
            trial.bind(where)
    except OSError as error:
        yield f"metrics.address: {address} is not an address of this machine: {error.strerror}"


def _rules(config: Config) -> Iterator[str]:
    """What no process can ever match; patterns may match anything."""
    for index, rule in enumerate(config.policy.rules):
        given = {
            key: text
            for key, text in rule.match.keys_in_file().items()
            if isinstance(text, str) and not any(character in text for character in "*?[")
        }
        user, comm = given.get("user", "0"), given.get("comm", "")
        if len(os.fsencode(comm)) > _COMM_BYTES_MAX:
            cut = os.fsdecode(os.fsencode(comm)[:_COMM_BYTES_MAX])
            yield f"policy.rules[{index}].match.comm: the kernel cuts {comm} to {cut}"
        try:
            if not user.isdigit():
                pwd.getpwnam(user)
        except KeyError:
            yield f"policy.rules[{index}].match.user: there is no user {user}"


def _is_read_only(path: Path) -> bool:
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def _existing(path: Path) -> Path:
    """The path, or the nearest directory above it that exists."""
    while not os.path.lexists(path):
        path = path.parent
    return path
