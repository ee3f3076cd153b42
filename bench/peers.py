"""Other tools that find leaks, run beside bpfleakd."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

from bench.targets import Target
from bench.tracing import ended_with_us
from bpfleakd.kernel.source import bpf_directory

__all__ = ["NotHere", "heaptrack", "memleak"]

_START_TIMEOUT_S = 60.0
_SLEEPS = ("230", "23")  # x86-64: clock_nanosleep, and select in Python before 3.11


class NotHere(Exception):
    """The tool cannot be run on this machine; the message says why."""


@contextlib.contextmanager
def memleak(pid: int, libc: Path) -> Iterator[None]:
    """bcc's memleak, attached to a process that has this C library."""
    program = shutil.which("memleak-bpfcc") or shutil.which("memleak", path="/usr/share/bcc/tools")
    if program is None:
        raise NotHere("bcc's memleak is not installed: apt install bpfcc-tools")
    with _kernel_headers() as environment, tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            ended_with_us(program, "-p", pid, "-O", libc),
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            _wait_until_it_sleeps(process, output)
            yield
        finally:
            process.terminate()
            process.wait()


@contextlib.contextmanager
def heaptrack(command: Sequence[object]) -> Iterator[Target]:
    """A target that runs under heaptrack, which records into a file as with `heaptrack --raw`."""
    libraries = sorted(Path("/usr/lib").glob("**/heaptrack/libheaptrack_preload.so"))
    if not libraries:
        raise NotHere("heaptrack is not installed: apt install heaptrack")
    with tempfile.TemporaryDirectory(prefix="bpfleakd-bench-") as directory:
        environment = [f"LD_PRELOAD={libraries[0]}", f"DUMP_HEAPTRACK_OUTPUT={directory}/heaptrack.raw"]
        target = Target(["env", *environment, *map(str, command)])
        try:
            yield target
        finally:
            target.kill()


@contextlib.contextmanager
def _kernel_headers() -> Iterator[dict[str, str]]:
    """An environment in which memleak finds kernel headers.

    Those of the running kernel, or else ours with the one macro more that memleak uses: its program is
    the same with either, and costs the same.
    """
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    if Path(f"/lib/modules/{os.uname().release}/build").exists():
        yield environment
        return
    with tempfile.TemporaryDirectory(prefix="bpfleakd-bench-") as directory:
        headers = Path(directory) / "headers"
        shutil.copytree(bpf_directory() / "shim", headers)
        with (headers / "include/linux/log2.h").open("a") as file:
            file.write("#define roundup_pow_of_two(n) (1ULL << (64 - __builtin_clzll((n) - 1)))\n")
        yield {**environment, "BCC_KERNEL_SOURCE": str(headers)}


def _wait_until_it_sleeps(process: subprocess.Popen, output: TextIO) -> None:
    """memleak sleeps between its reports: once it does so all probes are in place."""
    deadline = time.monotonic() + _START_TIMEOUT_S
    asleep_since = None
    while True:
        time.sleep(0.02)
        now = time.monotonic()
        if process.poll() is not None or now > deadline:
            output.seek(0)
            raise NotHere(f"memleak does not start: {output.read().strip()[-300:]}")
        if not _is_in_clock_sleep(process.pid):
            asleep_since = None
        elif asleep_since is None:
            asleep_since = now
        elif now - asleep_since > 0.1:
            return


def _is_in_clock_sleep(pid: int) -> bool:
    try:
        number = Path(f"/proc/{pid}/syscall").read_text().split()[0]
    except OSError:
        return False
    return number in _SLEEPS
