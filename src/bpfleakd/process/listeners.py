"""The TCP sockets of a process: the addresses it listens on, and the owners of connections.

The tables of its network namespace (/proc/PID/net/tcp, tcp6) list all sockets there, with their inodes; the
process owns those that its descriptors refer to.
"""

from __future__ import annotations

import os
import re
import socket
import struct
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import IO

from msgspec import Struct

_PROC = Path("/proc")
# 100,000 sockets; processes with more descriptors are skipped.
_TABLE_BYTES_MAX = 16 << 20
_DESCRIPTORS_MAX = 65_536
_SOCKET = re.compile(r"socket:\[(\d+)\]")
_ESTABLISHED, _LISTEN = 1, 10
# "sl local remote state queues timer retransmissions uid timeout inode"
_LOCAL, _REMOTE, _STATE, _INODE = 1, 2, 3, 9

_Endpoint = tuple[str, int]


class Listener(Struct, frozen=True):
    """A listening socket. `is_own`: it belongs to the process."""

    address: str
    port: int
    inode: int
    is_own: bool

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return ip_address(self.address).is_loopback

    @property
    def reachable(self) -> str:
        """The address to connect to from this machine."""
        address = ip_address(self.address)
        if not address.is_unspecified:
            return self.address
        return "127.0.0.1" if address.version == 4 else "::1"

    def __str__(self) -> str:
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


class _Row(Struct, frozen=True):
    local: _Endpoint
    remote: _Endpoint
    state: int
    inode: int


class TcpSockets:
    """Reads the sockets of one process. Raises OSError if it has ended, or has too many."""

    def __init__(self, pid: int, proc: Path = _PROC) -> None:
        self._directory = proc / str(pid)

    def listeners(self) -> list[Listener]:
        """All listening sockets of its network namespace."""
        own = self._own_inodes()
        rows = self._rows(only_listening=True)
        return [Listener(*row.local, row.inode, row.inode in own) for row in rows]

    def has_accepted(self, connection: socket.socket) -> bool:
        """Whether the process itself has the other end of a connection."""
        theirs, ours = _endpoint(connection.getpeername()), _endpoint(connection.getsockname())
        inodes = {
            row.inode
            for row in self._rows()
            if row.state == _ESTABLISHED and (row.local, row.remote) == (theirs, ours) and row.inode
        }
        return bool(inodes) and inodes <= self._own_inodes()

    def _own_inodes(self) -> frozenset[int]:
        descriptors = self._directory / "fd"
        names = os.listdir(descriptors)
        if len(names) > _DESCRIPTORS_MAX:
            raise OSError(f"it has more than {_DESCRIPTORS_MAX} descriptors")
        found = set()
        for name in names:
            try:
                link = _SOCKET.fullmatch(os.readlink(descriptors / name))
            except OSError:
                # Closed meanwhile.
                continue
            if link:
                found.add(int(link[1]))
        return frozenset(found)

    def _rows(self, *, only_listening: bool = False) -> Iterator[_Row]:
        for name in ("tcp", "tcp6"):
            try:
                table = (self._directory / "net" / name).open("rb")
            except FileNotFoundError:
                if name == "tcp":
                    raise
                continue
            with table:
                for row in _parsed(table):
                    if only_listening and row.state != _LISTEN:
                        # The kernel lists listening sockets first: a server has many others.
                        break
                    yield row


def _parsed(table: IO[bytes]) -> Iterator[_Row]:
    left_bytes = _TABLE_BYTES_MAX
    for line in table:
        left_bytes -= len(line)
        if left_bytes < 0:
            return
        columns = line.decode("ascii", "replace").split()
        if len(columns) > _INODE and columns[0] != "sl":
            state, inode = int(columns[_STATE], 16), int(columns[_INODE])
            yield _Row(_decoded(columns[_LOCAL]), _decoded(columns[_REMOTE]), state, inode)


def _endpoint(name: tuple[str, int]) -> _Endpoint:
    return str(_plain(ip_address(name[0].partition("%")[0]))), name[1]


def _decoded(text: str) -> _Endpoint:
    """Parse an address: the kernel prints its 32-bit words in the machine's byte order."""
    words, _colon, port = text.partition(":")
    data = bytes.fromhex(words)
    swapped = struct.pack(f">{len(data) // 4}I", *struct.unpack(f"<{len(data) // 4}I", data))
    address = IPv4Address(swapped) if len(swapped) == 4 else IPv6Address(swapped)
    return str(_plain(address)), int(port, 16)


def _plain(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """An IPv4 address as such, also if it comes from an IPv6 socket."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address
