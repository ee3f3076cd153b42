"""Limits the number of connections, in total and per peer.

On the unix socket a peer is a user, and so it is on TCP for connections from this machine. From elsewhere it
is an address (for IPv6 the /64, which one machine commonly has).
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable

from bpfleakd.api.local_users import LocalUsers
from bpfleakd.api.peer import peer_of
from bpfleakd.turns import Turns

# ("user", uid) or ("address", network).
PeerKey = tuple[str, int | str]

# A browser keeps up to six connections to an address, a scraper one.
CONNECTIONS_MAX = 128
PEER_CONNECTIONS_MAX = 32

# Maximum of unread bytes per peer, and of all together: beyond it, nothing more is computed for them.
_PEER_UNSENT_MAX_BYTES = 2 << 20
_UNSENT_MAX_BYTES = 8 << 20


class Admission:
    """Counts the connections of one listener, and refuses those over a limit."""

    def __init__(self, total_max: int = CONNECTIONS_MAX, peer_max: int = PEER_CONNECTIONS_MAX) -> None:
        self._open: Turns[PeerKey] = Turns(total_max, peer_max)
        self.refused_count = 0

    def admit(self, peer: PeerKey) -> bool:
        """Whether one more connection of `peer` is allowed; if so it counts until `release`."""
        is_admitted = self._open.take(peer)
        self.refused_count += not is_admitted
        return is_admitted

    def release(self, peer: PeerKey) -> None:
        """Count a connection of `peer` as closed."""
        self._open.give_back(peer)


def has_room(peer: PeerKey | None, unsent: Iterable[tuple[PeerKey, int]]) -> bool:
    """Whether one more answer to `peer` may wait to be read.

    `unsent` are the bytes that each connection has yet to send. A peer that has read all its answers always
    gets the next one, whatever others leave unread.
    """
    all_bytes = peer_bytes = 0
    for other, size_bytes in unsent:
        all_bytes += size_bytes
        peer_bytes += size_bytes if other == peer else 0
    return not peer_bytes or (peer_bytes <= _PEER_UNSENT_MAX_BYTES and all_bytes <= _UNSENT_MAX_BYTES)


def peer_key(connection: socket.socket, address: object, users: LocalUsers) -> PeerKey:
    """The user or host to which a connection accepted from `address` counts; OSError if it is closed."""
    if connection.family == socket.AF_UNIX:
        return ("user", peer_of(connection).uid)
    uid = users.uid_of(connection)
    if uid is not None:
        return ("user", uid)
    assert isinstance(address, tuple)
    return ("address", _network_of(address[0]))


def _network_of(address: str) -> str:
    parsed = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(parsed, ipaddress.IPv4Address):
        return address
    if parsed.ipv4_mapped:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, 64), strict=False))
