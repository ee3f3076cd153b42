"""Another process reads: the same as this one would."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bpfleakd import errors
from bpfleakd.process.environment import read_environment
from bpfleakd.process.mappings import read_mappings
from bpfleakd.process.memory import MemoryPart, MemoryReader
from bpfleakd.process.reading import apart as apart_module
from bpfleakd.process.reading.apart import ReadsApart
from bpfleakd.process.reading.reads import TargetFile, read_file, using
from bpfleakd.process.remote_memory import RemoteMemory
from bpfleakd.process.smaps import read_smaps

# It replaces itself on request.
PROGRAM = """
import ctypes, os, sys
words = ctypes.create_string_buffer(b"shop" * 1_000_000)
print(ctypes.addressof(words), flush=True)
sys.stdin.readline()
os.execv("/bin/sleep", ["sleep", "60"])
"""


@pytest.fixture
def apart() -> Iterator[ReadsApart]:
    reads = ReadsApart()
    with using(reads):
        yield reads
    reads.end()


@pytest.fixture
def target() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"SHOP": "open"},
    ) as program:
        yield program
        program.kill()


def words_of(program: subprocess.Popen[str]) -> int:
    assert program.stdout is not None
    return int(program.stdout.readline())


def server_of() -> int:
    """The pid of the server: the only child of this process that is one."""
    children = Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split()
    (server,) = (pid for pid in children if b"reading/server.py" in Path(f"/proc/{pid}/cmdline").read_bytes())
    return int(server)


def test_memory(apart: ReadsApart, target: subprocess.Popen[str]) -> None:
    """Small and large reads, up to the end of a mapping; an unmapped address is an error."""
    address = words_of(target)
    with RemoteMemory(target.pid) as memory:
        assert memory.read(address, 4) == b"shop"
        assert memory.read(address + 2, 3_000_000) == (b"opsh" * 1_000_000)[:3_000_000]
        assert memory.text(address, 8) == b"shopshop"
        with pytest.raises(OSError, match="Bad address"):
            memory.read(8, 8)


def test_memory_is_that_of_one_program(apart: ReadsApart, target: subprocess.Popen[str]) -> None:
    """After exec nothing is read, though the address is mapped in the new program."""
    words_of(target)
    with RemoteMemory(target.pid) as memory:
        assert target.stdin is not None
        target.stdin.write("now\n")
        target.stdin.flush()
        while os.readlink(f"/proc/{target.pid}/exe") == os.path.realpath(sys.executable):
            pass
        mapped = next(m for m in read_mappings(target.pid) if m.readable)
        with pytest.raises(ProcessLookupError):
            memory.read(mapped.start, 8)


def test_pieces(apart: ReadsApart, target: subprocess.Popen[str]) -> None:
    """Many at once, as the reader of blocks requests them."""
    address = -(-words_of(target) // 8) * 8
    reader = MemoryReader(target.pid)
    word = int.from_bytes(b"shopshop", "little")
    places = np.arange(address, address + 16_000, 8, np.uint64)
    assert set(reader.words(places).tolist()) <= {word, int.from_bytes(b"opshopsh", "little")}
    assert reader.words(np.array([8, address], np.uint64)).tolist()[0] == 0
    total = sum(
        int(lengths.sum()) for _at, lengths, _words in reader.read([MemoryPart(address, address + 2_400_000)])
    )
    assert total == 300_000


def test_files_of_proc(apart: ReadsApart, target: subprocess.Popen[str]) -> None:
    """Maps, smaps and the environment, as they are read directly; a file that is not there is an error."""
    words_of(target)
    mappings, smaps = read_mappings(target.pid), read_smaps(target.pid)
    environment = read_environment(target.pid)
    directory = Path(f"/proc/{target.pid}")
    with TargetFile(target.pid, directory / "maps") as file:
        assert b"".join(file.read_on()) == (directory / "maps").read_bytes()
    assert read_file(target.pid, directory / "comm", 3) == (directory / "comm").read_bytes()[:3]
    with pytest.raises(FileNotFoundError):
        read_file(target.pid, directory / "nothing")
    assert [usage.mapping for usage in smaps.usages] == list(mappings)
    assert environment[b"SHOP"] == b"open"


def test_what_has_ended(apart: ReadsApart, target: subprocess.Popen[str]) -> None:
    """Errors are those of the system calls."""
    address = words_of(target)
    with RemoteMemory(target.pid) as memory:
        target.kill()
        target.wait()
        with pytest.raises(ProcessLookupError):
            memory.read(address, 4)
    with pytest.raises(errors.NoSuchProcess):
        read_mappings(target.pid)
    with pytest.raises(errors.NoSuchProcess):
        MemoryReader(target.pid).words(np.array([address], np.uint64))


def test_a_server_that_was_killed(apart: ReadsApart, target: subprocess.Popen[str]) -> None:
    """A new one is started; descriptors stay the same."""
    address = words_of(target)
    with RemoteMemory(target.pid) as memory:
        assert memory.read(address, 4) == b"shop"
        os.kill(server_of(), signal.SIGKILL)
        assert memory.read(address + 8192, 4) == b"shop"
        assert not apart.is_silent(target.pid)


def test_a_server_that_does_not_answer(apart: ReadsApart, target: subprocess.Popen[str]) -> None:
    """Its process is silent, the others are read by another server, and the daemon waits a moment only."""
    address = words_of(target)
    with RemoteMemory(target.pid) as memory, RemoteMemory(os.getpid()) as other:
        own = ctypes.create_string_buffer(b"open", 8)
        assert other.read(ctypes.addressof(own), 4) == b"open"
        stopped = server_of()
        os.kill(stopped, signal.SIGSTOP)
        with pytest.raises(TimeoutError, match="does not answer"):
            memory.read(address, 4)
        assert apart.is_silent(target.pid)
        with pytest.raises(TimeoutError):
            memory.read(address, 4)
        assert other.read(ctypes.addressof(own), 4) == b"open"
        assert not apart.is_silent(os.getpid())


def test_an_idle_daemon_has_no_server(
    apart: ReadsApart, target: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is ended after a while without a read, and starts again with one."""
    words_of(target)
    read_mappings(target.pid)
    apart.close_idle()
    server_of()
    monkeypatch.setattr(apart_module, "IDLE_S", 0.0)
    apart.close_idle()
    with pytest.raises(ValueError, match="unpack"):
        server_of()
    assert read_mappings(target.pid)
