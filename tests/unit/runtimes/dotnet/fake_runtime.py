"""A runtime behind a real socket: it answers the commands of the diagnostics protocol."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from pathlib import Path

_MAGIC = b"DOTNET_IPC_V1\0"
UNKNOWN_COMMAND = 0x80131385


class FakeRuntime:
    """Sessions send `begin`, and at their stop `end`. `commands` are the known ones, `received` those that
    came, with their payloads. `silent`: it never answers, like a stopped process.
    """

    def __init__(
        self,
        path: Path,
        *,
        begin: bytes = b"",
        end: bytes = b"",
        commands: tuple[int, ...] = (1, 2, 3),
        silent: bool = False,
    ) -> None:
        self.received: list[tuple[int, bytes]] = []
        self._begin, self._end, self._commands, self._silent = begin, end, commands, silent
        self._sessions: dict[int, socket.socket] = {}
        self._kept: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def has_session(self, number: int) -> bool:
        """Whether a session has been answered, and its stream begun."""
        return number in self._sessions

    def send(self, session: int, data: bytes) -> None:
        """Send more of a session's stream."""
        self._sessions[session].sendall(data)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        for connection in (*self._sessions.values(), *self._kept):
            connection.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _peer = self._listener.accept()
            except OSError:
                return
            self._kept.append(connection)
            if not self._silent:
                # The client may have disconnected.
                with contextlib.suppress(OSError):
                    self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        head = connection.recv(20, socket.MSG_WAITALL)
        if len(head) < 20:
            return
        magic, size, command_set, command, reserved = struct.unpack("<14sHBBH", head)
        assert (magic, command_set, reserved) == (_MAGIC, 2, 0)
        payload = connection.recv(size - 20, socket.MSG_WAITALL)
        self.received.append((command, payload))
        if command not in self._commands:
            connection.sendall(struct.pack("<14sHBBHI", _MAGIC, 24, 0xFF, 0xFF, 0, UNKNOWN_COMMAND))
            return
        number = struct.unpack("<Q", payload)[0] if command == 1 else len(self._sessions) + 1
        connection.sendall(struct.pack("<14sHBBHQ", _MAGIC, 28, 0xFF, 0, 0, number))
        if command == 1:
            self._sessions[number].sendall(self._end)
            self._sessions[number].shutdown(socket.SHUT_RDWR)
        else:
            connection.sendall(self._begin)
            # Only now: the test's data follows the beginning.
            self._sessions[number] = connection
