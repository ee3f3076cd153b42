"""The file descriptors of a process: their number, its limit, and their kinds.

The kernel reports their number as the size of /proc/PID/fd since Linux 6.2 (commit f1f1f2569901, "proc:
report open files as size in stat() for /proc/pid/fd"); on older kernels bpfleakd lists the directory. Sockets
are found in the tables of the process' network namespace (/proc/PID/net). Sockets in none of them are
unconnected, or use a protocol without a table here.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import NamedTuple, TypeVar

from bpfleakd.printable import printable, shortened

PROC = Path("/proc")
# A line of a table takes 150 bytes: 100,000 sockets.
_TABLE_BYTES_MAX = 16 << 20
_TEXT_MAX = 100
_SOCKET = re.compile(r"socket:\[(\d+)\]")
_ANONYMOUS = re.compile(r"anon_inode:\[?(\w+)\]?")
_NAMES = {"eventpoll": "epoll", "eventfd": "eventfd"}
_CLOSE_WAIT = 8
_LISTEN = 10


_Group = TypeVar("_Group", bound=Hashable)


class _Socket(NamedTuple):
    protocol: str
    local: str
    remote: str
    state: int


def count_descriptors(pid: int, proc: Path = PROC) -> int | None:
    """The number of open descriptors of a process; None if it has ended."""
    directory = f"{proc}/{pid}/fd"
    try:
        return os.stat(directory).st_size or len(os.listdir(directory))
    except OSError:
        return None


def descriptor_limit(pid: int, proc: Path = PROC) -> int | None:
    """The soft RLIMIT_NOFILE of a process; None if it is unlimited, or if the process has ended."""
    try:
        limits = (proc / str(pid) / "limits").read_text()
    except OSError:
        return None
    found = re.search(r"^Max open files\s+(\d+)", limits, re.MULTILINE)
    return int(found[1]) if found else None


def uses_of(pid: int, skip: int, sample_max: int, proc: Path = PROC) -> Counter[str]:
    """The kinds of a process' descriptors, in words, with their number in a sample.

    Leaves out the `skip` lowest numbers: a new descriptor gets the lowest free number, so accumulating
    descriptors have higher numbers than the original ones. Raises OSError if the process has ended.
    """
    numbers = sorted(open_numbers(pid, proc))[skip:]
    step = max(1, -(-len(numbers) // sample_max))
    return uses_of_numbers(pid, {"": numbers[::step]}, proc)[""]


def open_numbers(pid: int, proc: Path = PROC) -> list[int]:
    """The numbers of the open descriptors of a process, unordered. Raises OSError if it has ended."""
    return [int(name) for name in os.listdir(proc / str(pid) / "fd")]


def uses_of_numbers(
    pid: int, groups: Mapping[_Group, Sequence[int]], proc: Path = PROC
) -> dict[_Group, Counter[str]]:
    """The kinds of the descriptors with these numbers, in words, by group; closed ones are omitted."""
    directory = proc / str(pid) / "fd"
    targets: dict[_Group, list[str]] = {group: [] for group in groups}
    for group, numbers in groups.items():
        for number in numbers:
            try:
                targets[group].append(os.readlink(directory / str(number)))
            except OSError:
                continue  # it was closed meanwhile
    inodes = {
        group: [int(found[1]) for target in those if (found := _SOCKET.fullmatch(target))]
        for group, those in targets.items()
    }
    wanted = {inode for those in inodes.values() for inode in those}
    sockets: dict[int, _Socket] = {}
    for inode, one in _sockets(pid, proc) if wanted else ():
        if inode in sockets and one.protocol == "unix":
            # A name with line breaks looks like further sockets, and the real one cannot be identified.
            if sockets[inode].protocol == "unix":
                sockets[inode] = sockets[inode]._replace(local="")
        elif inode in wanted:
            sockets[inode] = one
    return {
        group: Counter(_words(target) for target in those if not _SOCKET.fullmatch(target))
        + _socket_words(inodes[group], sockets)
        for group, those in targets.items()
    }


def _words(target: str) -> str:
    """The kind of a descriptor that is not a socket."""
    if target.startswith("pipe:["):
        return "pipes"
    if found := _ANONYMOUS.fullmatch(target):
        return _NAMES.get(found[1], printable(found[1]))
    if target.startswith("/memfd:"):
        return "memory files"
    if target.startswith("/dev/"):
        return shortened(printable(target), _TEXT_MAX)
    is_deleted = target.endswith(" (deleted)")
    folder = target.rpartition("/")[0] or "/"
    return ("deleted files in " if is_deleted else "files in ") + shortened(printable(folder), _TEXT_MAX)


def _socket_words(inodes: Sequence[int], found: Mapping[int, _Socket]) -> Counter[str]:
    """Describe sockets by their most common end: where they connect to, or where they were accepted."""
    words: Counter[str] = Counter()
    connected = []
    for inode in inodes:
        socket = found.get(inode)
        if socket is None:
            words["sockets"] += 1
        elif socket.protocol == "unix":
            words["unix sockets" + (f" at {socket.local}" if socket.local else "")] += 1
        elif socket.state == _LISTEN or socket.remote.endswith(":0"):
            words[f"{socket.protocol} sockets at {socket.local}"] += 1
        else:
            connected.append(socket)
    remotes, locals_ = Counter(one.remote for one in connected), Counter(one.local for one in connected)
    if remotes and remotes.most_common(1)[0][1] >= locals_.most_common(1)[0][1]:
        words += Counter(f"sockets to {one.remote}{_state(one)}" for one in connected)
    else:
        words += Counter(f"sockets accepted at {one.local}{_state(one)}" for one in connected)
    return words


def _state(socket: _Socket) -> str:
    """A notable state: the peer has closed the socket, but not the program: the most frequent socket leak."""
    return " in CLOSE_WAIT" if socket.protocol == "tcp" and socket.state == _CLOSE_WAIT else ""


def _sockets(pid: int, proc: Path) -> Iterator[tuple[int, _Socket]]:
    """The sockets in a process' network namespace, by inode (proc_net_tcp in the kernel's documentation)."""
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in _lines(proc / str(pid) / "net" / table):
            fields = line.split()
            try:
                socket = _Socket(table[:3], _address(fields[1]), _address(fields[2]), int(fields[3], 16))
                yield int(fields[9]), socket
            except (ValueError, IndexError):
                continue
    for line in _lines(proc / str(pid) / "net" / "unix"):
        fields = line.split(maxsplit=7)
        if len(fields) >= 7 and fields[6].isdigit():
            path = shortened(printable(fields[7]), _TEXT_MAX) if len(fields) == 8 else ""
            yield int(fields[6]), _Socket("unix", path, "", 0)


def _lines(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            return file.read(_TABLE_BYTES_MAX).decode(errors="surrogateescape").splitlines()[1:]
    except OSError:
        return []


def _address(text: str) -> str:
    """Parse an address and port in the kernel's hexadecimal form: words in the machine's byte order."""
    host, _, port = text.partition(":")
    words = bytes.fromhex(host)
    swapped = b"".join(words[at : at + 4][::-1] for at in range(0, len(words), 4))
    if len(swapped) == 4:
        return f"{IPv4Address(swapped)}:{int(port, 16)}"
    address = IPv6Address(swapped)
    if address.ipv4_mapped is not None:
        return f"{address.ipv4_mapped}:{int(port, 16)}"
    return f"[{address}]:{int(port, 16)}"
