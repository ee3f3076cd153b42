"""Whether file systems answer is checked beside the loop, and once."""

from __future__ import annotations

import os
import threading

import pytest
from msgspec.structs import replace

from bpfleakd import errors
from bpfleakd.process.mappings import parse_mappings
from bpfleakd.tracing.attaching.code_reader import FileSystems

LOCAL, REMOTE = os.makedev(8, 1), os.makedev(0, 0x2A)
(CODE,) = parse_mappings("1000-2000 r-xp 00000000 00:2a 23 /far/program")
HERE = replace(CODE, device="08:01", path="/near/program")


class Server:
    """Opens files, as long as it answers."""

    def __init__(self) -> None:
        self.answers, self.opened = threading.Event(), list[str]()

    def touch(self, pid: int, mapping, owner: str) -> None:
        self.opened.append(mapping.path)
        self.answers.wait()

    def file_systems(self) -> FileSystems:
        return FileSystems(self.touch, lambda device: device == LOCAL)


@pytest.fixture
def server():
    one = Server()
    yield one
    one.answers.set()


def test_local_files_are_not_waited_for(server):
    """Nor for mappings without code or without a file."""
    others = [HERE, replace(CODE, executable=False), replace(CODE, inode=0)]
    server.file_systems().expect_answers(os.getpid(), "this one", others)
    assert server.opened == []


def test_a_server_that_does_not_answer_is_asked_once(server):
    """Further callers get the same result at once; everything continues when it answers."""
    systems = server.file_systems()
    mappings = [HERE, CODE, replace(CODE, inode=24)]
    for _ in range(3):
        with pytest.raises(errors.NotYet, match="/far/program does not answer"):
            systems.expect_answers(os.getpid(), "this one", mappings, 0.01)
    server.answers.set()
    systems.expect_answers(os.getpid(), "this one", mappings, 10.0)
    systems.expect_answers(os.getpid(), "this one", mappings, 0.0)
    assert server.opened == ["/far/program"]


def test_an_error_is_an_answer():
    """For example that the file may not be opened."""

    def refuse(pid: int, mapping, owner: str) -> None:
        raise PermissionError(13, "Permission denied")

    FileSystems(refuse, lambda device: False).expect_answers(os.getpid(), "this one", [CODE], 10.0)
