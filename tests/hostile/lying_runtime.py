"""A process that says it is .NET: behind its diagnostics socket is a stream of events that never ends.

    python lying_runtime.py BEGINNING REPEATED

Each session gets the content of the file BEGINNING, and then that of REPEATED again and again.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
import threading
from pathlib import Path

_HEADER = struct.Struct("<14sHBBH")
_STOP = 1


def serve(connection: socket.socket, beginning: bytes, repeated: bytes) -> None:
    """Answer one command, and send for as long as somebody reads."""
    with connection, contextlib.suppress(OSError):
        magic, size, _set, command, _reserved = _HEADER.unpack(connection.recv(20, socket.MSG_WAITALL))
        connection.recv(size - 20, socket.MSG_WAITALL)
        connection.sendall(_HEADER.pack(magic, 28, 0xFF, 0, 0) + struct.pack("<Q", 1))
        if command != _STOP:
            connection.sendall(beginning)
            while True:
                connection.sendall(repeated)


def main() -> None:
    contents = [Path(name).read_bytes() for name in sys.argv[1:]]
    started = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(f"/tmp/dotnet-diagnostic-{os.getpid()}-{started}-socket")
        listener.listen()
        while True:
            connection, _peer = listener.accept()
            threading.Thread(target=serve, args=(connection, *contents), daemon=True).start()


if __name__ == "__main__":
    main()
