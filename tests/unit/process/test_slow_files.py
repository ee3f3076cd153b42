"""Opening files whose server answers late or never."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from bpfleakd.model.code.mapping import Mapping
from bpfleakd.process.files.slow_files import THREADS_MAX, SlowFiles
from bpfleakd.process.mappings import parse_mappings

from ..waiting import until

PID = 2
(FILE,) = parse_mappings("1000-2000 r-xp 00000000 00:2a 23 /far/program")


class Server:
    """Answers with the path of the file once released; `opens` counts the requests."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.opens = 0

    def open_file(self, pid: int, mapping: Mapping, owner: str) -> str:
        self.opens += 1
        self.answers.wait()
        if mapping.path == "/gone":
            raise FileNotFoundError(2, "gone")
        return mapping.path


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.answers.set()


def test_a_file_that_is_answered_is_there_at_once(server: Server) -> None:
    """So is an error."""
    server.answers.set()
    files = slow_files(server)
    assert files.open(PID, FILE, "one") == FILE.path
    with pytest.raises(FileNotFoundError):
        files.open(PID, replace(FILE, path="/gone", inode=24), "one")


def test_what_comes_late_is_kept_for_whoever_asks_again(server: Server) -> None:
    """It is requested once."""
    files = slow_files(server)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            files.open(PID, FILE, "one")
    server.answers.set()
    until(lambda: _opened(files, "one") == FILE.path)
    assert server.opens == 1


def test_a_silent_server_costs_little_and_only_its_process(server: Server) -> None:
    """One thread per process, and a limit for all."""
    files = slow_files(server)
    for inode in range(20):
        with pytest.raises(TimeoutError):
            files.open(PID, replace(FILE, inode=inode + 1), "one")
    assert server.opens == 1
    for number in range(2 * THREADS_MAX):
        with pytest.raises(TimeoutError):
            files.open(PID, FILE, f"other {number}")
    assert server.opens == THREADS_MAX


def test_an_answer_is_kept_for_who_asks_again(server: Server) -> None:
    """An attach retries until all files of the process are open; an error is requested again."""
    server.answers.set()
    files = slow_files(server)
    for _ in range(3):
        assert files.open(PID, FILE, "one") == FILE.path
    files.close_idle()
    assert files.open(PID, FILE, "one") == FILE.path
    assert server.opens == 1
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            files.open(PID, replace(FILE, path="/gone", inode=24), "one")
    assert server.opens == 3


def test_another_process_with_the_pid_gets_no_file_of_the_first(server: Server) -> None:
    """Device numbers are used again, too."""
    server.answers.set()
    instance = "2@1"
    files = SlowFiles(server.open_file, instance_of=lambda _pid: instance)
    assert files.open(PID, FILE, str(PID)) == FILE.path
    instance = "2@2"
    assert files.open(PID, FILE, str(PID)) == FILE.path
    assert server.opens == 2


def slow_files(server: Server) -> SlowFiles[str]:
    """Processes are distinguished by their owners."""
    return SlowFiles(server.open_file, instance_of=lambda _pid: None)


def _opened(files: SlowFiles[str], owner: str) -> str | None:
    try:
        return files.open(PID, FILE, owner)
    except TimeoutError:
        return None
