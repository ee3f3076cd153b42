"""Starts server programs, and keeps them busy with constant load."""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator

from bench.peers import NotHere
from bench.tracing import ended_with_us

_START_TIMEOUT_S = 20.0
# Pause between two requests of a client: constant, and low enough for a small machine.
_PAUSE_S = 0.005


def tool(name: str) -> str:
    """The path of an installed program. Raises NotHere."""
    path = shutil.which(name, path="/usr/sbin:/usr/bin:/bin")
    if path is None:
        raise NotHere(f"{name} is not installed")
    return path


@contextlib.contextmanager
def running(*command: object) -> Iterator[subprocess.Popen]:
    """The command as a process, from `with` to its end; it has no input, and its output is discarded."""
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(
        ended_with_us(*command), stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True
    )
    try:
        yield process
    finally:
        # Including the children of a loop.
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()


@contextlib.contextmanager
def asked_by(client: Callable[[], Iterator[None]], clients: int = 2) -> Iterator[None]:
    """Run clients until the end; each step of one is a request."""
    stop = threading.Event()

    def run() -> None:
        for _ in client():
            if stop.wait(_PAUSE_S):
                return

    threads = [threading.Thread(target=run) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def http_client(port: int) -> Iterator[None]:
    """A client that repeatedly requests /, over a connection for 50 requests."""
    connected(port).close()
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        for _ in range(50):
            connection.request("GET", "/")
            connection.getresponse().read()
            yield
        connection.close()


def connected(port: int) -> socket.socket:
    """A connection to a local server, which may still be starting."""
    deadline = time.monotonic() + _START_TIMEOUT_S
    while True:
        try:
            connection = socket.create_connection(("127.0.0.1", port), timeout=30)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return connection
