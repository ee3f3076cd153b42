"""The process that reads for the daemon, so the daemon can limit its waits.

    python -I -S server.py SOCKET BUFFER

SOCKET is a unix socket of packets: each request is one packet, and so is each reply. BUFFER is a memfd of
BUFFER_BYTES that the daemon maps as well, for the data. The program imports nothing from the package: it is
small, and starts within 20 ms. It does not interpret the data.

A request consists of a kind, a handle (or pid), a size and a place, followed by data that depends on the
kind. A reply has the result of the system call, or the negative error, and its duration in nanoseconds if it
waited at all.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import errno
import mmap
import os
import resource
import signal
import socket
import struct
import sys
import time

BUFFER_BYTES = 1 << 20
REQUEST = struct.Struct("=4Q")
REPLY = struct.Struct("=qQ")
OPEN, ADOPT, CLOSE, READ_AT, READ_ON, WRITE_AT, READ_PIECES, READ_FILE, READ_MEMORY = range(9)
GATHER, RINGS, CHAINS = range(9, 12)
OPEN_BELOW = 12
# 1,024 pieces (UIO_MAXIOV) of 16 bytes, a path, or the data to write.
PAYLOAD_BYTES_MAX = 16 << 10

_PIECE_BYTES = 16
# Of a GATHER request: process, bytes at each address. The addresses follow.
GATHERED = struct.Struct("=2Q")
# Of lists: process, maximum of elements, and a number that depends on the kind. The lists follow.
LISTS = struct.Struct("=3Q")
# Of the result: elements, lists that could not be followed to their end, lists that continue. The elements,
# their addresses, and the lists that continue follow.
FOUND = struct.Struct("=4Q")
ELEMENT_BYTES = 32
_FORWARD, _BACK = 2, 3
# Two elements: the forward link of the first, and the backward link of the second.
_LINKS = struct.Struct("=16xQ32xQ")
_FEW = 3
_GATHERED_MAX = 1024  # UIO_MAXIOV
# Beyond the end of user space.
_NOWHERE = 1 << 62
_SYS_OPENAT2 = 437
_RESOLVE_NO_MAGICLINKS, _RESOLVE_IN_ROOT = 0x02, 0x10
_HOW = struct.Struct("=QQQ")
_STATFS_BYTES = 120
# A file opened below a root: type of its file system, and device.
FILE_SYSTEM = struct.Struct("=QQ")
_ANCILLARY_BYTES = socket.CMSG_SPACE(4)


class Words:
    """Reads words of a process' memory, many per call, and leaves results in a buffer.

    Elements of lists have four words: the third links forward, the fourth backward.
    """

    def __init__(self, buffer: mmap.mmap) -> None:
        self._view = memoryview(buffer)
        self._words = self._view.cast("Q")
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        read = ctypes.CDLL(None, use_errno=True).process_vm_readv
        read.restype = ctypes.c_ssize_t
        number, pointer = ctypes.c_ulong, ctypes.c_void_p
        read.argtypes = [ctypes.c_int, pointer, number, pointer, number, number]
        self._read = read
        self._local = array.array("Q", [0, 0])
        self._remote = array.array("Q", [0, ELEMENT_BYTES] * _GATHERED_MAX)
        # They never move: their sizes do not change.
        self._local_at, self._remote_at = self._local.buffer_info()[0], self._remote.buffer_info()[0]

    def pieces(self, pid: int, pieces: bytes) -> int:
        """Read like process_vm_readv(2). Raises OSError."""
        self._local[0], self._local[1] = self._base, BUFFER_BYTES
        got: int = self._read(pid, self._local_at, 1, pieces, len(pieces) // _PIECE_BYTES, 0)
        if got < 0:
            raise OSError(ctypes.get_errno(), "process_vm_readv")
        return got

    def gather(self, request: bytes) -> int:
        """Read `size` bytes at each address, followed by one byte for each, 0 if it cannot be read."""
        pid, size_bytes = GATHERED.unpack_from(request)
        addresses = array.array("Q", request[GATHERED.size :])
        count = len(addresses)
        if count * (size_bytes + 1) > BUFFER_BYTES or not size_bytes:
            raise OSError(errno.EINVAL, "too much at once")
        could = bytearray(count)
        at = 0
        while at < count:
            some = min(count - at, _GATHERED_MAX)
            got = max(0, self.read_into(pid, at * size_bytes, addresses[at : at + some], size_bytes))
            done = got // size_bytes
            could[at : at + done] = b"\1" * done
            # The address after those that were read cannot be read.
            at += done + (done < some)
        total: int = count * (size_bytes + 1)
        self._view[count * size_bytes : total] = could
        return total

    def rings(self, request: bytes) -> int:
        """Follow rings from both ends until these meet; each has an end, a first and a last element."""
        pid, most, _unused = LISTS.unpack_from(request)
        numbers = array.array("Q", request[LISTS.size :]).tolist()
        ends, forwards, backs = numbers[::3], numbers[1::3], numbers[2::3]
        room = min(most, self._room(3 * len(ends)))
        found = array.array("Q")
        broken = 0
        rest: list[int] = []
        while ends and len(found) + 2 * len(ends) <= room:
            count = len(ends)
            if count <= _FEW:
                # One after the other: working on all at once would repeat that work for each step.
                ring = ends.pop(), forwards.pop(), backs.pop()
                is_broken, going = self._follow_ring(pid, *ring, found, room)
                broken += is_broken
                rest += going
                continue
            at = FOUND.size + ELEMENT_BYTES * len(found)
            addresses = array.array("Q", forwards + backs)
            got = self.read_into(pid, at, addresses, ELEMENT_BYTES)
            if got != 2 * count * ELEMENT_BYTES:
                gone = max(0, got) // ELEMENT_BYTES % count
                del ends[gone], forwards[gone], backs[gone]
                broken += 1
                continue
            found.extend(addresses)
            read = self._words[at // 8 : at // 8 + 8 * count].tolist()
            after, before = read[_FORWARD : 4 * count : 4], read[4 * count + _BACK :: 4]
            over = [
                forward == back or one in (back, end) or other == end
                for end, forward, back, one, other in zip(ends, forwards, backs, after, before, strict=True)
            ]
            if True in over:
                # They meet, unless the list was changed meanwhile.
                broken += sum(
                    ends[ring] in (after[ring], before[ring])
                    and forwards[ring] != backs[ring]
                    and after[ring] != backs[ring]
                    for ring in range(count)
                )
                ends, after, before = (
                    [each for each, is_over in zip(those, over, strict=True) if not is_over]
                    for those in (ends, after, before)
                )
            forwards, backs = after, before
        rest += [number for ring in zip(ends, forwards, backs, strict=True) for number in ring]
        return self._finish(found, broken, len(rest) // 3, rest)

    def _follow_ring(
        self, pid: int, end: int, forward: int, back: int, found: array.array[int], room: int
    ) -> tuple[bool, list[int]]:
        """Follow one ring; returns whether it is broken, and where it continues if there is no more room."""
        read, local, remote, view = self._read, self._local, self._remote, self._view
        remote[1] = remote[3] = ELEMENT_BYTES
        local[0], local[1] = self._base + FOUND.size + ELEMENT_BYTES * len(found), 2 * ELEMENT_BYTES
        while len(found) + 2 <= room:
            remote[0], remote[2] = forward, back
            if read(pid, self._local_at, 1, self._remote_at, 2, 0) != 2 * ELEMENT_BYTES:
                return True, []
            after, before = _LINKS.unpack_from(view, local[0] - self._base)
            found.append(forward)
            found.append(back)
            if forward == back or after == back:
                return False, []
            if after == end or before == end:
                return True, []
            local[0] += 2 * ELEMENT_BYTES
            forward, back = after, before
        return False, [end, forward, back]

    def chains(self, request: bytes) -> int:
        """Follow singly linked lists, all at once, from their first elements to 0.

        The link is `behind` bytes after the beginning of an element, and mangled with its own address if the
        highest bit of that number is set (PROTECT_PTR of glibc).
        """
        pid, most, behind = LISTS.unpack_from(request)
        is_mangled, behind = behind >> 63, behind & ~(1 << 63)
        addresses = array.array("Q", request[LISTS.size :]).tolist()
        room = min(most, self._room(len(addresses)))
        found = array.array("Q")
        broken = 0
        while addresses and len(found) + len(addresses) <= room:
            at = FOUND.size + ELEMENT_BYTES * len(found)
            here = array.array("Q", addresses)
            got = self.read_into(pid, at, here, ELEMENT_BYTES)
            if got != len(here) * ELEMENT_BYTES:
                del addresses[max(0, got) // ELEMENT_BYTES]
                broken += 1
                continue
            found.extend(here)
            word = at // 8
            links = self._words[word + _FORWARD : word + 4 * len(here) : 4].tolist()
            if is_mangled:
                links = [
                    link ^ (one + 8 * _FORWARD >> 12) for link, one in zip(links, addresses, strict=True)
                ]
            going = [link - behind for link in links if link]
            addresses = [one for one in going if one > 0]
            broken += len(going) - len(addresses)
        return self._finish(found, broken, len(addresses), addresses)

    def _room(self, rest_words: int) -> int:
        return (BUFFER_BYTES - FOUND.size - 8 * rest_words) // (ELEMENT_BYTES + 8)

    def _finish(self, found: array.array[int], broken: int, lists: int, rest: list[int]) -> int:
        FOUND.pack_into(self._view, 0, len(found), broken, lists, 0)
        at = FOUND.size + ELEMENT_BYTES * len(found)
        behind = found.tobytes() + array.array("Q", rest).tobytes()
        self._view[at : at + len(behind)] = behind
        return at + len(behind)

    def read_into(self, pid: int, place: int, addresses: array.array[int], size_bytes: int) -> int:
        """Read the memory at these addresses to a place in the buffer; -1 if nothing can be read."""
        count = min(len(addresses), _GATHERED_MAX)
        self._remote[: 2 * count : 2] = addresses[:count]
        if self._remote[1] != size_bytes:
            self._remote[1::2] = array.array("Q", [size_bytes]) * _GATHERED_MAX
        self._local[0], self._local[1] = self._base + place, count * size_bytes
        got: int = self._read(pid, self._local_at, 1, self._remote_at, count, 0)
        return got


def open_in_root(root: str | bytes | os.PathLike[str], path: bytes, flags: int) -> int:
    """openat2(2) below a directory: no link leads out of it, and links of /proc are not followed.

    Raises OSError.
    """
    if b"\0" in path:
        raise OSError(errno.EINVAL, "a path with a NUL")
    root_fd = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        how = _HOW.pack(flags | os.O_CLOEXEC, 0, _RESOLVE_IN_ROOT | _RESOLVE_NO_MAGICLINKS)
        return _called(
            "syscall",
            ctypes.c_long(_SYS_OPENAT2),
            ctypes.c_int(root_fd),
            ctypes.c_char_p(path.lstrip(b"/") or b"."),
            ctypes.c_char_p(how),
            ctypes.c_size_t(len(how)),
        )
    finally:
        os.close(root_fd)


def file_system(descriptor: int) -> tuple[int, int]:
    """The type (linux/magic.h) of the file system of an open file, and its device number. Raises OSError."""
    # os.fstatvfs omits f_type, with which struct statfs begins.
    buffer = ctypes.create_string_buffer(_STATFS_BYTES)
    _called("fstatfs", ctypes.c_int(descriptor), buffer)
    return int.from_bytes(buffer.raw[:8], "little"), os.fstat(descriptor).st_dev


def _called(function: str, *arguments: object) -> int:
    done: int = getattr(ctypes.CDLL(None, use_errno=True), function)(*arguments)
    if done < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return done


class Took:
    """Measures the duration of a request, from now on."""

    def __init__(self) -> None:
        self._sleeps = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        self._began_ns = time.monotonic_ns()

    def ns(self) -> int:
        """Nanoseconds since the beginning if the thread waited; otherwise 0.

        The kernel counts how often a thread gave its processor away to wait. If it did not, the time was
        spent working, or taken by other programs or other virtual machines, which no figure of the process
        includes.
        """
        if resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw == self._sleeps:
            return 0
        return time.monotonic_ns() - self._began_ns


class Server:
    """Executes requests; the handles of files are the daemon's."""

    def __init__(self, channel: socket.socket, buffer: mmap.mmap) -> None:
        self._channel = channel
        self._view = memoryview(buffer)
        self._words = Words(buffer)
        self._files: dict[int, int] = {}

    def serve(self) -> None:
        """Answer requests until the daemon closes its end."""
        channel = self._channel
        channel.send(REPLY.pack(0, 0))
        while True:
            packet, beside, _flags, _address = channel.recvmsg(
                REQUEST.size + PAYLOAD_BYTES_MAX, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC
            )
            if not packet:
                return
            kind, handle, size_bytes, place = REQUEST.unpack_from(packet)
            payload = packet[REQUEST.size :]
            took = Took()
            if kind in (OPEN, OPEN_BELOW):
                self._open(kind, payload, size_bytes, took)
            elif kind == ADOPT:
                self._files[handle] = array.array("i", beside[0][2])[0]
            elif kind == CLOSE:
                os.close(self._files.pop(handle))
            else:
                try:
                    done = self._do(kind, handle, size_bytes, place, payload)
                except OSError as error:
                    done = -(error.errno or errno.EIO)
                channel.send(REPLY.pack(done, took.ns()))

    def _open(self, kind: int, path: bytes, flags: int, took: Took) -> None:
        """Open a file for the daemon, which receives the descriptor and sends it back (ADOPT) for reading."""
        try:
            if kind == OPEN:
                descriptor = os.open(path, flags | os.O_CLOEXEC)
            else:
                root, _nul, below = path.partition(b"\0")
                descriptor = self._open_below(root, below, flags)
        except OSError as error:
            done = -(error.errno or errno.EIO)
            self._channel.send(REPLY.pack(done, took.ns()))
            return
        reply = REPLY.pack(0, took.ns())
        socket.send_fds(self._channel, [reply], [descriptor])
        os.close(descriptor)

    def _open_below(self, root: bytes, path: bytes, flags: int) -> int:
        descriptor = open_in_root(root, path, flags)
        try:
            FILE_SYSTEM.pack_into(self._view, 0, *file_system(descriptor))
        except OSError:
            os.close(descriptor)
            raise
        return descriptor

    def _do(self, kind: int, handle: int, size_bytes: int, place: int, payload: bytes) -> int:
        if kind == READ_AT:
            return os.preadv(self._files[handle], [self._view[:size_bytes]], place)
        if kind == READ_ON:
            return self._read_on(self._files[handle], size_bytes)
        if kind == WRITE_AT:
            return os.pwrite(self._files[handle], payload, place)
        if kind == READ_FILE:
            with open(payload, "rb", buffering=0) as file:
                return self._read_on(file.fileno(), size_bytes)
        if kind == READ_MEMORY:
            return self._read_memory(handle, size_bytes, place, int.from_bytes(payload, "little"))
        if kind == READ_PIECES:
            return self._words.pieces(handle, payload)
        done = read_words(self._words, kind, payload)
        _check_is_there(self._files[handle])
        return done

    def _read_on(self, descriptor: int, size_bytes: int) -> int:
        """Read the rest of a file, since files of /proc return one page per read."""
        done = 0
        while done < size_bytes:
            got = os.readv(descriptor, [self._view[done:size_bytes]])
            if not got:
                break
            done += got
        return done

    def _read_memory(self, handle: int, size_bytes: int, address: int, pid: int) -> int:
        """Read what belongs to the address space of an open /proc/PID/mem.

        A read of that file keeps the memory map locked while it waits for a page (access_remote_vm in
        mm/memory.c); then the process cannot map memory, nor anybody place breakpoints in its libraries.
        process_vm_readv(2) lets it go (faultin_page in mm/gup.c). The file tells whether the address space is
        still that of the process: it reads nothing at all if not.
        """
        got = self._words.pieces(pid, struct.pack("QQ", address, size_bytes))
        _check_is_there(self._files[handle])
        return got


def read_words(words: Words, kind: int, request: bytes) -> int:
    """Execute a GATHER, RINGS or CHAINS request; returns how many bytes of the buffer it filled."""
    if kind == GATHER:
        return words.gather(request)
    return words.rings(request) if kind == RINGS else words.chains(request)


def _check_is_there(descriptor: int) -> None:
    """Raise OSError if the address space of this /proc/PID/mem has no process any more."""
    try:
        os.pread(descriptor, 1, _NOWHERE)
    except OSError:
        return
    raise OSError(errno.ESRCH, "the address space has gone")


def main() -> None:
    """Serve the socket whose descriptor the command line names."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = socket.socket(fileno=int(sys.argv[1]))
    buffer = mmap.mmap(int(sys.argv[2]), BUFFER_BYTES)
    # The daemon may end during the answer.
    with contextlib.suppress(OSError):
        Server(channel, buffer).serve()
    os._exit(0)


if __name__ == "__main__":
    main()
