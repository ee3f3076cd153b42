"""The process and user at the other end of a unix socket, from the kernel (SO_PEERCRED, unix(7))."""

from __future__ import annotations

import pwd
import socket
import struct

from msgspec import Struct

_UCRED = struct.Struct("3i")  # struct ucred: pid, uid, gid


class Peer(Struct, frozen=True):
    """A process and its user, as of its connect or listen. `pid` is 0 in a namespace that we do not see."""

    pid: int
    uid: int
    gid: int

    @property
    def user(self) -> str:
        """The user's name, or the number if it has none."""
        try:
            return pwd.getpwuid(self.uid).pw_name
        except KeyError:
            return str(self.uid)


def peer_of(connection: socket.socket) -> Peer:
    """Return the credentials of the process that connected, or that listens."""
    return Peer(*_UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)))
