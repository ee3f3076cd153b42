"""Finds the user of this machine at the other end of a TCP connection, from the kernel (sock_diag(7)).

All users share the loopback addresses: a limit by address would let one of them use up the share of all.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import struct

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST = 1
_ALL_STATES = 0xFFFFFFFF
_ANY_COOKIE = b"\xff" * 8  # INET_DIAG_NOCOOKIE, twice

# struct nlmsghdr, then struct inet_diag_req_v2 (linux/inet_diag.h): family, protocol, extensions, padding,
# states and the socket's id (ports in network order, two addresses of 16 bytes, interface, cookie).
_REQUEST = struct.Struct("=IHHII BBBBI HH16s16sI8s")
# struct nlmsghdr, then struct inet_diag_msg: 4 bytes, the id, expires, receive queue, send queue, uid, inode.
_ANSWER = struct.Struct("=IHHII 4s48s IIIII")

# The kernel answers within the call; this is for a kernel that does not answer at all.
_TIMEOUT_S = 0.1


class LocalUsers:
    """Finds the user of a connection; None if that fails."""

    def __init__(self) -> None:
        self._netlink: socket.socket | None = None
        with contextlib.suppress(OSError):
            self._netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG)
            self._netlink.settimeout(_TIMEOUT_S)

    def close(self) -> None:
        """Close the socket to the kernel."""
        if self._netlink is not None:
            self._netlink.close()

    def uid_of(self, connection: socket.socket) -> int | None:
        """The owner of the other end of a TCP connection; None if it is on another machine.

        Raises ConnectionError if the other end is closed: then it has no owner.
        """
        theirs, ours = connection.getpeername(), connection.getsockname()
        if not _is_of_this_machine(theirs[0], ours[0]):
            return None
        try:
            return self._ask(connection.family, theirs, ours)
        except ConnectionError:
            raise
        except (OSError, ValueError, struct.error):
            return None

    def _ask(self, family: int, source: tuple[str, int], destination: tuple[str, int]) -> int | None:
        if self._netlink is None:
            return None
        self._netlink.send(_request(family, source, destination))
        answer = self._netlink.recv(4096)
        if struct.unpack_from("=IH", answer)[1] != _SOCK_DIAG_BY_FAMILY:
            return None  # An error: there is no such socket.
        *_, uid, inode = _ANSWER.unpack_from(answer)
        if not inode:
            # Without an owner the kernel reports 0 (sock_i_uid, inet_twsk_diag_fill): anybody could use up
            # root's share with connections closed at once.
            raise ConnectionResetError
        return int(uid)


def _is_of_this_machine(theirs: str, ours: str) -> bool:
    return theirs == ours or ipaddress.ip_address(theirs.partition("%")[0]).is_loopback


def _request(family: int, source: tuple[str, int], destination: tuple[str, int]) -> bytes:
    return _REQUEST.pack(
        _REQUEST.size,
        _SOCK_DIAG_BY_FAMILY,
        _NLM_F_REQUEST,
        0,
        0,
        family,
        socket.IPPROTO_TCP,
        0,
        0,
        _ALL_STATES,
        socket.htons(source[1]),
        socket.htons(destination[1]),
        _packed(family, source[0]),
        _packed(family, destination[0]),
        0,
        _ANY_COOKIE,
    )


def _packed(family: int, address: str) -> bytes:
    return socket.inet_pton(family, address.partition("%")[0]).ljust(16, b"\0")
