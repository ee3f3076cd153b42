"""What this machine supports, and what happens to a test that it cannot run."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import NoReturn

import pytest

PACKAGES = {
    "bpftool": "bpftool (Ubuntu: linux-tools-generic)",
    "gcc": "gcc",
    "g++": "g++",
    "heaptrack": "heaptrack",
    "heaptrack_print": "heaptrack",
    "ip": "iproute2",
    "make": "make",
    "memcached": "memcached",
    "nsenter": "util-linux",
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "setpriv": "util-linux",
    "sqlite3": "sqlite3",
    "valgrind": "valgrind and libc6-dbg",
}

LIBRARIES = Path("/usr/lib/x86_64-linux-gnu")
# Debian 12 has mimalloc 2, Debian 13 mimalloc 3.
MIMALLOC = next((path.name for path in sorted(LIBRARIES.glob("libmimalloc.so.?.0"))), "libmimalloc.so.2.0")


def is_ci() -> bool:
    """Whether "cannot run" is a failure."""
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


def cannot_run(reason: str) -> NoReturn:
    """End the test: skipped at home, failed in CI. `reason` states what is missing and how to fix it."""
    if is_ci():
        pytest.fail(f"cannot run, which is a failure in CI: {reason}", pytrace=False)
    pytest.skip(reason)


def need_tool(name: str) -> str:
    """Return the path of a program; without it the test cannot run."""
    path = shutil.which(name)
    if path is None:
        cannot_run(f"{name} is not installed: apt install {PACKAGES.get(name, name)}, or make setup FOR=test")
    return path


@cache
def bpftool_path() -> str:
    """The path of a bpftool that runs. Ubuntu's command is a script that needs the running kernel's build."""
    candidates = [shutil.which("bpftool"), *map(str, Path("/usr/lib").glob("linux-tools*/**/bpftool"))]
    for path in filter(None, candidates):
        if subprocess.run([path, "version"], capture_output=True, check=False).returncode == 0:
            return path
    cannot_run(f"no bpftool works here: apt install {PACKAGES['bpftool']}, or make setup FOR=test")


@cache
def why_not_here() -> str | None:
    """Return why no BPF can be loaded on this machine, or None if it can."""
    if os.geteuid() != 0:
        return "loading BPF needs root: sudo make test-kernel"
    if platform.machine() != "x86_64":
        return f"bpfleakd knows x86-64 only, this machine is {platform.machine()}"
    for path, kind in ((Path("/sys/fs/bpf"), "bpf_fs"), (Path("/sys/kernel/tracing"), "tracefs")):
        found = subprocess.run(["stat", "-f", "-c", "%T", path], capture_output=True, text=True, check=False)
        if found.stdout.strip() != kind:
            return f"{path} is not mounted: make setup, or mount -t {kind.removesuffix('_fs')} none {path}"
    try:
        import bcc
    except ImportError:
        return "Python finds no bcc: apt install python3-bpfcc, and a venv made with --system-site-packages"
    if not hasattr(bcc, "BPF"):
        return f"{bcc.__file__} is another project's package called bcc: pip uninstall bcc"
    return None
