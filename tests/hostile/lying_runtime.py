"""A process that says it is .NET: behind its diagnostics socket is a stream of events that never ends.

    python lying_runtime.py BEGINNING REPEATED
    python lying_runtime.py --silent|--slow|--long

Each session gets the content of the file BEGINNING, and then that of REPEATED again and again. Or commands
are never answered, or with a byte now and then, or with an answer that is longer than it says.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
import threading
import time
from pathlib import Path

_HEADER = struct.Struct("<14sHBBH")
_STOP = 1


def serve(connection: socket.socket, beginning: bytes, repeated: bytes) -> None:
    """Answer one command, and send for as long as the other side reads."""
    with connection, contextlib.suppress(OSError):
        magic, size, _set, command, _reserved = _HEADER.unpack(connection.recv(20, socket.MSG_WAITALL))
        connection.recv(size - 20, socket.MSG_WAITALL)
        connection.sendall(_HEADER.pack(magic, 28, 0xFF, 0, 0) + struct.pack("<Q", 1))
        if command != _STOP:
            connection.sendall(beginning)
            while True:
                connection.sendall(repeated)


def refuse(connection: socket.socket, manner: str) -> None:
    """Answer a command so that the client can use none of it."""
    with connection, contextlib.suppress(OSError):
        while manner == "--silent" and connection.recv(1 << 16):
            pass
        magic = connection.recv(20, socket.MSG_WAITALL)[:14]
        answer = _HEADER.pack(magic, 0xFFFF, 0xFF, 0, 0) + bytes(0xFFFF)
        while manner == "--long":
            connection.sendall(answer)
        for byte in answer:
            connection.sendall(bytes([byte]))
            time.sleep(0.1)


def main() -> None:
    is_lying = not sys.argv[1].startswith("--")
    contents = [Path(name).read_bytes() for name in sys.argv[1:]] if is_lying else sys.argv[1:]
    answer = serve if is_lying else refuse
    started = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(f"/tmp/dotnet-diagnostic-{os.getpid()}-{started}-socket")
        listener.listen()
        while True:
            connection, _peer = listener.accept()
            threading.Thread(target=answer, args=(connection, *contents), daemon=True).start()


if __name__ == "__main__":
    main()
