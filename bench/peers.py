"""Tools that trace a running process. launchers.py has those that start the program."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TextIO

from bench.tracing import ended_with_us
from bpfleakd.kernel.compilation.source import bpf_directory

_STOP_TIMEOUT_S = 10.0
_START_TIMEOUT_S = 60.0
_SLEEPS = ("230", "23")  # x86-64: clock_nanosleep, and select in Python before 3.11

# Outstanding blocks by stack; the predicate limits it to one process. bpftrace attaches probes in the order
# of the text, so "ready" is printed when all are in place. At its end bpftrace would print every block.
_BPFTRACE = """
uprobe:{library}:malloc /pid == {pid}/ {{ @size[tid] = arg0; }}
uretprobe:{library}:malloc /@size[tid]/ {{
    @live[retval] = @size[tid]; @stack[retval] = ustack(); delete(@size[tid]);
}}
uprobe:{library}:free /@live[arg0]/ {{ delete(@live[arg0]); delete(@stack[arg0]); }}
interval:ms:100 /!@ready/ {{ printf("ready\\n"); @ready = 1; }}
END {{ clear(@size); clear(@live); clear(@stack); clear(@ready); }}
"""


class NotHere(Exception):
    """The tool cannot be run on this machine; the message says why."""


@contextlib.contextmanager
def memleak(pid: int, library: Path, *, every: int = 1) -> Iterator[Callable[[], str]]:
    """bcc's memleak on a process with this allocator, recording one allocation of `every`.

    Yields a function that returns its reports so far: the ten stacks with the most outstanding bytes, every 5
    seconds.
    """
    program = shutil.which("memleak-bpfcc") or shutil.which("memleak", path="/usr/share/bcc/tools")
    if program is None:
        raise NotHere("bcc's memleak is not installed: apt install bpfcc-tools")
    command = (program, "-p", pid, "-O", library, "-s", every)
    with (
        _kernel_headers() as environment,
        _running("memleak", command, environment, _sleeps_between_reports()) as output,
    ):
        yield lambda: _text(output)


@contextlib.contextmanager
def bpftrace(pid: int, library: Path) -> Iterator[None]:
    """A bpftrace program of three probes, which keeps outstanding blocks with their stacks.

    `bpftrace -p` places uprobes in every process of the file, so no other process may use the library.
    """
    program = shutil.which("bpftrace")
    if program is None:
        raise NotHere("bpftrace is not installed: apt install bpftrace")
    command = (program, "-e", _BPFTRACE.format(library=library, pid=pid))
    with _running("bpftrace", command, os.environ, lambda _pid, output: "ready" in _text(output)):
        yield


@contextlib.contextmanager
def _running(
    name: str,
    command: tuple[object, ...],
    environment: Mapping[str, str],
    is_ready: Callable[[int, TextIO], bool],
) -> Iterator[TextIO]:
    """The tool, once it traces; yields the file with its output."""
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            ended_with_us(*command),
            env={**environment, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            deadline = time.monotonic() + _START_TIMEOUT_S
            while not is_ready(process.pid, output):
                if process.poll() is not None or time.monotonic() > deadline:
                    (*_, said) = ["", *_text(output).strip().splitlines()]
                    raise NotHere(f"{name} does not start: {said[-300:]}")
                time.sleep(0.02)
            yield output
        finally:
            process.terminate()
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                # bpftrace sometimes misses a signal soon after its start.
                process.kill()
                process.wait()


def _text(output: TextIO) -> str:
    # Not by the descriptor's own offset, at which the tool continues to write.
    return os.pread(output.fileno(), 1 << 24, 0).decode(errors="replace")


@contextlib.contextmanager
def _kernel_headers() -> Iterator[Mapping[str, str]]:
    """An environment in which memleak finds kernel headers.

    Those of the running kernel, or bpfleakd's own with the one additional macro that memleak uses. Its
    program, and the cost of it, are the same with either.
    """
    if Path(f"/lib/modules/{os.uname().release}/build").exists():
        yield os.environ
        return
    with tempfile.TemporaryDirectory(prefix="bpfleakd-bench-") as directory:
        headers = Path(directory) / "headers"
        shutil.copytree(bpf_directory() / "shim", headers)
        with (headers / "include/linux/log2.h").open("a") as file:
            file.write("#define roundup_pow_of_two(n) (1ULL << (64 - __builtin_clzll((n) - 1)))\n")
        yield {**os.environ, "BCC_KERNEL_SOURCE": str(headers)}


def _sleeps_between_reports() -> Callable[[int, TextIO], bool]:
    """memleak sleeps between its reports: once it sleeps, all probes are in place."""
    asleep_since: float | None = None

    def is_ready(pid: int, _output: TextIO) -> bool:
        nonlocal asleep_since
        if not _is_in_clock_sleep(pid):
            asleep_since = None
        elif asleep_since is None:
            asleep_since = time.monotonic()
        return asleep_since is not None and time.monotonic() - asleep_since > 0.1

    return is_ready


def _is_in_clock_sleep(pid: int) -> bool:
    try:
        number = Path(f"/proc/{pid}/syscall").read_text().split()[0]
    except OSError:
        return False
    return number in _SLEEPS
