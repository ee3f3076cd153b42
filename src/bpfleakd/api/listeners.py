"""Listening sockets for the API, and the errors when an address is not available."""

from __future__ import annotations

import asyncio
import errno
import grp
import os
import socket
import stat
from pathlib import Path

import structlog

from bpfleakd.api.peer import peer_of
from bpfleakd.errors import AccessDenied, AlreadyRunning, ConfigError

_BACKLOG = 64

# Root and the socket's group: users with write access decide which processes are traced.
_SOCKET_MODE = 0o660
_PROBE_TIMEOUT_S = 1.0

log = structlog.get_logger()


def bind_unix(path: Path, group: str | None = None) -> socket.socket:
    """A socket that listens on `path`; creates its directory and removes a dead daemon's socket file.

    The file gets the group `group`; if that does not exist, the daemon's own group, and a log line reports
    it.

    Raises AlreadyRunning if a daemon answers there, AccessDenied, or ConfigError naming `socket`.
    """
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        if remove_stale(path):
            log.info("api.stale_socket_removed", socket=path)
        listener = socket.socket(socket.AF_UNIX)
        try:
            listener.bind(str(path))
            # Nobody can connect before listen, so the umask's mode does no harm.
            path.chmod(_SOCKET_MODE)
            _give_to_group(path, group)
            listener.listen(_BACKLOG)
        except OSError:
            listener.close()
            raise
    except PermissionError as error:
        words = f"cannot create the socket {path}: {error.strerror}"
        raise AccessDenied(words, "run as root, or set another socket") from error
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(f"socket: cannot create {path}: {reason}", "set another socket") from error
    return listener


def _give_to_group(path: Path, group: str | None) -> None:
    if group is None:
        return
    try:
        os.chown(path, -1, grp.getgrnam(group).gr_gid, follow_symlinks=False)
    except KeyError:
        hint = f"groupadd --system {group}, and restart the daemon; or set socket_group"
        log.warning("api.only-root", reason=f"there is no group {group}", hint=hint)
    except PermissionError as error:
        hint = f"run as root, or as a member of {group}"
        log.warning("api.only-root", reason=f"cannot give the socket to {group}: {error.strerror}", hint=hint)


def remove_stale(path: Path) -> bool:
    """Remove the socket file of a daemon that died; returns whether there was one.

    Raises AlreadyRunning if a daemon answers there, ConfigError if it is not a socket, OSError.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"socket: {path} exists and is not a socket", "remove it, or set another socket")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_PROBE_TIMEOUT_S)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return True
        except TimeoutError:  # a process listens, and its queue is full
            pid = 0
        else:
            pid = peer_of(probe).pid
    who = f"a daemon (pid {pid})" if pid else "a daemon"
    raise AlreadyRunning(f"{who} already answers on {path}", "stop it, or use another --socket")


async def bind_tcp(address: str, port: int) -> socket.socket:
    """Return a socket that listens on an address or host name; port 0 lets the kernel choose.

    Raises AccessDenied, or ConfigError naming `metrics.address` or `metrics.port`.
    """
    where = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
    off = "or set metrics.enabled: false"
    try:
        found = await asyncio.get_running_loop().getaddrinfo(address, port, type=socket.SOCK_STREAM)
        family, _, _, _, sockaddr = found[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            # A restarted daemon need not wait for the timeout of the previous one's connections.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(sockaddr)
            listener.listen(_BACKLOG)
        except OSError:
            listener.close()
            raise
    except socket.gaierror as error:
        words = f"metrics.address: {address} is not an address of this machine: {error.strerror}"
        raise ConfigError(words, f"set metrics.address to an address or host name, {off}") from error
    except PermissionError as error:
        words = f"metrics.port: no permission to listen on {where}"
        raise AccessDenied(words, f"use a port ≥ 1024, {off}") from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            words = f"metrics.port: {where} is in use by another program"
            raise ConfigError(words, f"set metrics.port to a free one, {off}") from error
        words = f"metrics.address: cannot listen on {where}: {os.strerror(error.errno or 0)}"
        raise ConfigError(words, f"set metrics.address to an address of this machine, {off}") from error
    return listener
