"""Jobs for helpers in tests: attempts at what they must not be able to do."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

JOBS = ("echo", "attempts", "sleep", "spin", "die", "fill", "work", "wait_for_text")


def prepare() -> None:
    """Nothing to load."""


def echo(files: Sequence[int], arguments: Any, answer: Callable[[object], None]) -> None:
    answer([os.pread(file, 100, 0).decode() for file in files])
    answer(arguments)


def work(_files: Sequence[int], seconds: Any, answer: Callable[[object], None]) -> None:
    """Use a processor for some time, and answer."""
    while time.process_time() < seconds:
        pass
    answer("done")


def attempts(files: Sequence[int], _arguments: Any, answer: Callable[[object], None]) -> None:
    """Answer with the attempts that succeeded."""
    possible = []
    for name, attempt in (
        ("open", lambda: os.open("/etc/passwd", os.O_RDONLY)),
        ("list", lambda: os.listdir("/")),
        ("socket", lambda: socket.socket()),
        ("fork", os.fork),
        ("exec", lambda: os.execv("/bin/true", ["true"])),
        ("kill", lambda: os.kill(os.getppid(), 0)),
        ("setuid", lambda: os.setresuid(0, 0, 0)),
        ("write a file", lambda: os.write(files[0], b"x")),
        ("unlink", lambda: os.unlink("/tmp/none")),
    ):
        try:
            attempt()
        except OSError:
            continue
        possible.append(name)
    answer(possible)


def sleep(_files: Sequence[int], arguments: Any, _answer: Callable[[object], None]) -> None:
    time.monotonic()
    while True:
        pass


spin = sleep


def wait_for_text(files: Sequence[int], _arguments: Any, answer: Callable[[object], None]) -> None:
    """Answer when the file has a text."""
    while not os.pread(files[0], 1, 0):
        time.monotonic()
    answer("done")


def die(_files: Sequence[int], _arguments: Any, answer: Callable[[object], None]) -> None:
    answer("before")
    os._exit(1)


def fill(_files: Sequence[int], _arguments: Any, answer: Callable[[object], None]) -> None:
    answer(len(bytearray(3 << 30)))
