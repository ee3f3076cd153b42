"""The process that reads for the daemon, so that the daemon waits no longer than it wants to.

    python -I -S server.py SOCKET BUFFER

SOCKET is a unix socket of packets: each request is one, and so is each reply. BUFFER is a memfd of
BUFFER_BYTES that the daemon maps as well; data goes through it. The program imports nothing of the package:
it is small, and starts within 20 ms. It understands nothing of what it reads.

A request is a kind, a handle (or pid), a size and a place, and what the kind needs behind them. A reply has
what the system call returned, or the negative error, and how many nanoseconds it took.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import errno
import mmap
import os
import signal
import socket
import struct
import sys
import time

BUFFER_BYTES = 1 << 20
REQUEST = struct.Struct("=4Q")
REPLY = struct.Struct("=qQ")
OPEN, ADOPT, CLOSE, READ_AT, READ_ON, WRITE_AT, READ_PIECES, READ_FILE, READ_MEMORY, FOLLOW = range(10)
# 1,024 pieces (UIO_MAXIOV) of 16 bytes, or a path, or what is written.
PAYLOAD_BYTES_MAX = 16 << 10

_PIECE_BYTES = 16
# Of a list: process, place of the link in an element, address at which it ends, elements at most.
LIST = struct.Struct("=4Q")
# Beyond the end of user space.
_NOWHERE = 1 << 62
_ANCILLARY_BYTES = socket.CMSG_SPACE(4)


class Server:
    """Does what a request says; the handles of files are those of the daemon."""

    def __init__(self, channel: socket.socket, buffer: mmap.mmap) -> None:
        self._channel = channel
        self._view = memoryview(buffer)
        self._buffer = (ctypes.c_uint64 * 2)(
            ctypes.addressof(ctypes.c_char.from_buffer(buffer)), BUFFER_BYTES
        )
        self._files: dict[int, int] = {}
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.process_vm_readv.restype = ctypes.c_ssize_t

    def serve(self) -> None:
        """Answer until the daemon closes its end."""
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
            began_ns = time.monotonic_ns()
            if kind == OPEN:
                self._open(payload, size_bytes, began_ns)
            elif kind == ADOPT:
                self._files[handle] = array.array("i", beside[0][2])[0]
            elif kind == CLOSE:
                os.close(self._files.pop(handle))
            else:
                try:
                    done = self._do(kind, handle, size_bytes, place, payload)
                except OSError as error:
                    done = -(error.errno or errno.EIO)
                channel.send(REPLY.pack(done, time.monotonic_ns() - began_ns))

    def _open(self, path: bytes, flags: int, began_ns: int) -> None:
        """The daemon gets the descriptor, and gives it back (ADOPT) for what is to be read."""
        try:
            descriptor = os.open(path, flags | os.O_CLOEXEC)
        except OSError as error:
            done = -(error.errno or errno.EIO)
            self._channel.send(REPLY.pack(done, time.monotonic_ns() - began_ns))
            return
        reply = REPLY.pack(0, time.monotonic_ns() - began_ns)
        socket.send_fds(self._channel, [reply], [descriptor])
        os.close(descriptor)

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
        if kind == FOLLOW:
            return self._follow(self._files[handle], size_bytes, place, *LIST.unpack(payload))
        return self._read_pieces(handle, payload)

    def _read_on(self, descriptor: int, size_bytes: int) -> int:
        """Files of /proc give a page at a time."""
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
        got = self._read_pieces(pid, struct.pack("QQ", address, size_bytes))
        _check_is_there(self._files[handle])
        return got

    def _follow(
        self, descriptor: int, size_bytes: int, address: int, pid: int, link_at: int, end: int, count: int
    ) -> int:
        """Read the elements of a list one behind the other; it ends early where one cannot be read."""
        base, _size = self._buffer
        local, remote = (ctypes.c_uint64 * 2)(base, size_bytes), (ctypes.c_uint64 * 2)(0, size_bytes)
        read, one, none = self._libc.process_vm_readv, ctypes.c_ulong(1), ctypes.c_ulong(0)
        link, view = struct.Struct("<Q"), self._view
        done = 0
        while address != end and count:
            local[0], remote[0] = base + done, address
            if read(pid, local, one, remote, one, none) != size_bytes:
                break
            (address,) = link.unpack_from(view, done + link_at)
            done += size_bytes
            count -= 1
        _check_is_there(descriptor)
        return done

    def _read_pieces(self, pid: int, pieces: bytes) -> int:
        got: int = self._libc.process_vm_readv(
            pid,
            self._buffer,
            ctypes.c_ulong(1),
            pieces,
            ctypes.c_ulong(len(pieces) // _PIECE_BYTES),
            ctypes.c_ulong(0),
        )
        if got < 0:
            raise OSError(ctypes.get_errno(), "process_vm_readv")
        return got


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
    # The daemon may go while it is answered.
    with contextlib.suppress(OSError):
        Server(channel, buffer).serve()
    os._exit(0)


if __name__ == "__main__":
    main()
