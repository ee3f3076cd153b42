"""`bpfleakctl run -- COMMAND`: start a program with a sampler inside, and trace it.

On a terminal `top` uses the screen meanwhile, and the command's output follows afterwards; files and pipes
receive it at once. The exit code is the command's.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

from bpfleakd import errors
from bpfleakd.api.client import DaemonClient
from bpfleakd.cli.arguments import whole_number_between
from bpfleakd.cli.inside_library import LIBRARY, environment_with, library_path
from bpfleakd.model.process import TracingMode
from bpfleakd.printable import printable

HELP = "start a program with a sampler inside, and trace it"

_INTERVAL_MIN_BYTES, _INTERVAL_MAX_BYTES = 1 << 10, 1 << 32
# Pauses until the dynamic loader has mapped the library, and then between checks for another exec.
_FIRST_PAUSE_S, _PAUSE_S = 0.005, 0.2
_LOADED_WITHIN_S = 2.0
# As in shells.
_NOT_FOUND, _NOT_EXECUTABLE, _SIGNALLED = 127, 126, 128

_CHUNK_BYTES = 1 << 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = f"{parser.prog} [--sample-interval BYTES] [--no-top] -- COMMAND ..."
    parser.add_argument(
        "--sample-interval",
        type=whole_number_between(_INTERVAL_MIN_BYTES, _INTERVAL_MAX_BYTES),
        metavar="BYTES",
        help="announce one block in this many bytes (524288)",
    )
    parser.add_argument("--no-top", action="store_true", help="leave the terminal to the command")
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="the program, with its arguments"
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the command to its end, traced; returns its exit code."""
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command:
        raise errors.ConfigError("there is no command to run", "bpfleakctl run -- COMMAND [ARGUMENT ...]")
    client = DaemonClient(arguments.socket)
    # Without a daemon the command is not started.
    client.processes()
    environment = environment_with(library_path(), arguments.sample_interval)
    has_screen = not arguments.no_top and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    held = HeldOutput() if has_screen else None
    try:
        process = _started(command, environment, held)
    except OSError as error:
        print(f"bpfleakctl: {printable(command[0])}: {error.strerror}", file=sys.stderr)
        return _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE
    # A signal that ends bpfleakctl ends the command; the terminal itself sends Ctrl-C to both.
    signal.signal(signal.SIGTERM, lambda number, _frame: process.send_signal(number))
    signal.signal(signal.SIGHUP, lambda number, _frame: process.send_signal(number))
    signal.signal(signal.SIGINT, lambda _number, _frame: None)
    follower = _Follower(client, process.pid)
    if held is None:
        _wait(process, follower)
    else:
        _wait_behind_screen(process, follower, arguments.socket, held)
    return process.returncode if process.returncode >= 0 else _SIGNALLED - process.returncode


def _started(
    command: list[str], environment: dict[str, str], held: HeldOutput | None
) -> subprocess.Popen[bytes]:
    if held is None:
        return subprocess.Popen(command, env=environment)
    return subprocess.Popen(
        command,
        env=environment,
        stdin=held.stdin,
        stdout=held.of(sys.stdout),
        stderr=held.of(sys.stderr),
    )


class _Follower:
    """Traces a process from inside, and again after each exec."""

    def __init__(self, client: DaemonClient, pid: int) -> None:
        self._client = client
        self._pid = pid
        self._began_s = time.monotonic()
        self._attached_at: int | None = None
        self._complained = False

    @property
    def pause_s(self) -> float:
        """The time until the next look."""
        is_new = self._attached_at is None and time.monotonic() - self._began_s < _LOADED_WITHIN_S
        return _FIRST_PAUSE_S if is_new else _PAUSE_S

    def look(self) -> None:
        """Attach if it is time to."""
        place = self._library_place()
        if place is None:
            if not self._complained and time.monotonic() - self._began_s > _LOADED_WITHIN_S:
                self._attach_from_outside("it does not load the library (is it linked statically?)")
        elif place != self._attached_at:
            self._attached_at = place
            self._attach()

    def _attach(self) -> None:
        try:
            self._client.attach(self._pid, TracingMode.INSIDE)
        except (errors.AlreadyAttached, errors.NoSuchProcess):
            # By the policy; or it has ended already.
            return
        except errors.NoAllocator:
            self._attach_from_outside("the library would miss some of its blocks, or count some twice")
        except errors.BpfleakdError as error:
            self._complain(f"it is not traced: {error.message}")

    def _attach_from_outside(self, reason: str) -> None:
        self._complain(f"bpfleakd samples it from outside: {reason}")
        try:
            self._client.attach(self._pid, TracingMode.SAMPLED)
        except (errors.AlreadyAttached, errors.NoSuchProcess):
            return
        except errors.BpfleakdError as error:
            self._complained = False
            self._complain(f"it is not traced: {error.message}")

    def _complain(self, text: str) -> None:
        # A process that has ended meanwhile needs no message: a zombie has no memory.
        if not self._complained and _has_memory(self._pid):
            print(f"bpfleakctl: process {self._pid}: {printable(text)}", file=sys.stderr)
        self._complained = True

    def _library_place(self) -> int | None:
        """The address of the library, which differs in each program; None if it is not mapped."""
        try:
            lines = Path(f"/proc/{self._pid}/maps").read_bytes().splitlines()
        except OSError:
            return None
        name = b"/" + LIBRARY.encode()
        return next((int(line.split(b"-")[0], 16) for line in lines if line.endswith(name)), None)


def _has_memory(pid: int) -> bool:
    try:
        return bool(Path(f"/proc/{pid}/maps").read_bytes())
    except OSError:
        return False


def _wait(process: subprocess.Popen[bytes], follower: _Follower) -> None:
    while _is_running(process, follower.pause_s):
        follower.look()


def _is_running(process: subprocess.Popen[bytes], wait_s: float) -> bool:
    try:
        process.wait(wait_s)
    except subprocess.TimeoutExpired:
        return True
    return False


def _wait_behind_screen(
    process: subprocess.Popen[bytes], follower: _Follower, socket: Path, held: HeldOutput
) -> None:
    """Wait with `top` on the screen, until it is closed or the command ends."""
    ctl = [sys.executable, "-m", "bpfleakd.cli.bpfleakctl", "--socket", str(socket)]
    top: subprocess.Popen[bytes] | None = None
    while _is_running(process, follower.pause_s):
        follower.look()
        if top is None:
            top = subprocess.Popen([*ctl, "top", "--pid", str(process.pid)])
        elif top.poll() is not None:
            held.copy()
    if top is not None and top.poll() is None:
        top.send_signal(signal.SIGINT)
        top.wait()
    held.copy()
    subprocess.run([*ctl, "top", "--pid", str(process.pid), "--once"], check=False)


class HeldOutput:
    """Replaces standard output and standard error where they are terminals.

    It is a file without a name, because a child of the command may outlive bpfleakctl and still write to it.
    """

    def __init__(self) -> None:
        # Open for as long as the command may write to it.
        self._file: IO[bytes] = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
        self._copied_bytes = 0

    def of(self, stream: IO[str]) -> IO[bytes] | None:
        """The replacement of a stream; None: the stream itself."""
        return self._file if stream.isatty() else None

    def copy(self) -> None:
        """Write the output since the last call to the terminal."""
        while data := os.pread(self._file.fileno(), _CHUNK_BYTES, self._copied_bytes):
            self._copied_bytes += len(data)
            sys.stdout.buffer.write(data)
        sys.stdout.flush()

    @property
    def stdin(self) -> int | None:
        """The standard input of the command: empty while `top` reads the keys; None: bpfleakctl's own."""
        return subprocess.DEVNULL if sys.stdin.isatty() else None
