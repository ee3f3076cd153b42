"""A file system with one file, whose server answers some opens and reads, and then never again."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import struct
import sys
from pathlib import Path

_IN = struct.Struct("<IIQQIIIHH")
_OUT = struct.Struct("<IiQ")
_ATTRIBUTES = struct.Struct("<6Q10I")
_ENTRY = struct.Struct("<4Q2I")
_ATTRIBUTES_OUT = struct.Struct("<QII")
_READ_IN = struct.Struct("<QQI")
_INIT_OUT = struct.Struct("<4IHHIIHHI7I")
_LOOKUP, _FORGET, _GETATTR, _OPEN, _READ, _RELEASE, _FLUSH, _INIT = 1, 2, 3, 14, 15, 18, 25, 26
_INTERRUPT, _BATCH_FORGET = 36, 42
_ROOT, _FILE = 1, 2
_LONG_S = 3600


class Server:
    """Answers requests; `opens`, `reads` and `names` are how many are still answered."""

    def __init__(self, content: bytes, opens: int, reads: int, names: int) -> None:
        self._content = content
        self._opens = opens
        self._reads = reads
        self._names = names

    def answer(self, opcode: int, node: int, body: bytes) -> bytes | None:
        """The answer to a request; None: none, ever. Raises OSError to answer an error."""
        if opcode == _INIT:
            return _INIT_OUT.pack(7, 31, 0, 0, 12, 9, 4096, 1, 0, 0, 0, *[0] * 7)
        if opcode == _LOOKUP and body == b"file\0":
            return _ENTRY.pack(_FILE, 1, _LONG_S, _LONG_S, 0, 0) + self._attributes(_FILE)
        if opcode == _LOOKUP:
            self._names -= 1
            if self._names < 0:
                return None
        if opcode == _GETATTR:
            return _ATTRIBUTES_OUT.pack(_LONG_S, 0, 0) + self._attributes(node)
        if opcode == _OPEN:
            self._opens -= 1
            return struct.pack("<QII", 1, 0, 0) if self._opens >= 0 else None
        if opcode == _READ:
            self._reads -= 1
            _handle, offset, size_bytes = _READ_IN.unpack_from(body)
            return None if self._reads < 0 else self._content[offset : offset + size_bytes]
        if opcode in (_RELEASE, _FLUSH):
            return b""
        raise OSError(errno.ENOENT if opcode == _LOOKUP else errno.ENOSYS, "")

    def _attributes(self, node: int) -> bytes:
        size_bytes, mode = (len(self._content), 0o100755) if node == _FILE else (0, 0o40755)
        return _ATTRIBUTES.pack(node, size_bytes, 1, *[0] * 3, *[0] * 3, mode, 1, 0, 0, 0, 4096, 0)


def serve(device: int, server: Server) -> None:
    """Serve requests, or ignore them. Always answers the close of a file, so that a client can exit."""
    while True:
        request = os.read(device, 1 << 16)
        _length, opcode, unique, node, *_ = _IN.unpack_from(request)
        if opcode in (_FORGET, _BATCH_FORGET, _INTERRUPT):
            continue
        error, body = 0, b""
        try:
            answer = server.answer(opcode, node, request[_IN.size :])
            if answer is None:
                continue
            body = answer
        except OSError as failed:
            error = -(failed.errno or errno.EIO)
        with contextlib.suppress(FileNotFoundError):  # the client has been killed
            os.write(device, _OUT.pack(_OUT.size + len(body), error, unique) + body)


def main() -> None:
    mount_point, file, *numbers = sys.argv[1:]
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40755,user_id=0,group_id=0,allow_other"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"silent", os.fsencode(mount_point), b"fuse", 0, options.encode()):
        sys.exit(os.strerror(ctypes.get_errno()))
    server = Server(Path(file).read_bytes(), *map(int, numbers))
    print("mounted", flush=True)
    serve(device, server)


if __name__ == "__main__":
    main()
