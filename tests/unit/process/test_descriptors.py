"""The descriptors of a child that opens some of each kind."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bpfleakd.process.descriptors import count_descriptors, descriptor_limit, uses_of

# Python's own: the standard streams.
_STANDARD = 3


@contextmanager
def child(script: str) -> Iterator[tuple[int, str]]:
    """A Python program that has run a script: its pid, and what `told` was set to."""
    script = f"import os, select, socket\ntold = ''\n{script}\nprint(told, flush=True)\ninput()"
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    yield process.pid, process.stdout.readline().strip()
    process.communicate("\n")


def test_files_and_pipes_and_what_has_no_name(tmp_path):
    """By folder, by kind; a deleted file is marked."""
    script = f"""
os.chdir({str(tmp_path)!r})
kept, deleted, null = open("a", "w"), open("b", "w"), open("/dev/null")
epoll, pipe = select.epoll(), os.pipe()
os.unlink("b")
"""
    with child(script) as (pid, _told):
        assert uses_of(pid, _STANDARD, 100) == {
            f"files in {tmp_path}": 1,
            f"deleted files in {tmp_path}": 1,
            "/dev/null": 1,
            "epoll": 1,
            "pipes": 2,
        }


def test_connections_by_where_they_go():
    """Many connections to one server: the server's address groups them."""
    script = """
server = socket.create_server(("127.0.0.1", 0))
told = server.getsockname()[1]
clients = [socket.create_connection(("127.0.0.1", told)) for _ in range(3)]
"""
    with child(script) as (pid, port):
        assert uses_of(pid, _STANDARD, 100) == {
            f"tcp sockets at 127.0.0.1:{port}": 1,
            f"sockets to 127.0.0.1:{port}": 3,
        }


def test_connections_that_were_accepted_and_left():
    """The clients have gone; the server has not closed its ends."""
    script = """
server = socket.create_server(("127.0.0.1", 0))
told = server.getsockname()[1]
clients = [socket.create_connection(("127.0.0.1", told)) for _ in range(3)]
accepted = [server.accept()[0] for _ in clients]
for client in clients:
    client.close()
"""
    with child(script) as (pid, port):
        assert uses_of(pid, _STANDARD, 100) == {
            f"tcp sockets at 127.0.0.1:{port}": 1,
            f"sockets accepted at 127.0.0.1:{port} in CLOSE_WAIT": 3,
        }


def test_ipv6_and_unix(tmp_path):
    """Addresses have the usual notation; an unconnected one is a socket."""
    script = f"""
server = socket.create_server(("::1", 0), family=socket.AF_INET6)
told = server.getsockname()[1]
local, unconnected = socket.socket(socket.AF_UNIX), socket.socket()
local.bind({str(tmp_path / "s")!r})
"""
    with child(script) as (pid, port):
        if not port:
            pytest.skip("needs IPv6")
        assert uses_of(pid, _STANDARD, 100) == {
            f"tcp sockets at [::1]:{port}": 1,
            f"unix sockets at {tmp_path}/s": 1,
            "sockets": 1,
        }


def test_a_name_that_looks_like_other_sockets(tmp_path):
    """A program cannot say where the sockets of others go to: a name may have line breaks."""
    script = f"""
os.chdir({str(tmp_path)!r})
server = socket.create_server(("127.0.0.1", 0))
told = server.getsockname()[1]
real, forger = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
real.bind("r")
inodes = [os.stat(one.fileno()).st_ino for one in (real, server)]
lines = [f"0: 2 0 0 1 1 {{inode}} @f" for inode in inodes]
forger.bind("\\n".join(["n", *lines, ""]))
"""
    with child(script) as (pid, port):
        uses = uses_of(pid, _STANDARD, 100)
        assert uses == {f"tcp sockets at 127.0.0.1:{port}": 1, "unix sockets": 1, "unix sockets at n": 1}


def test_a_sample_of_many():
    """As large a part of each kind as there is."""
    script = """
for number in range(300): os.open("/etc/passwd", 0)
for number in range(100): os.pipe()
"""
    with child(script) as (pid, _told):
        uses = uses_of(pid, _STANDARD, 100)
        assert uses.total() <= 100
        assert uses["files in /etc"] / uses.total() == pytest.approx(0.6, abs=0.03)
        assert count_descriptors(pid) == _STANDARD + 500
    assert count_descriptors(pid) is None
    assert descriptor_limit(pid) is None


def test_the_limit(tmp_path: Path):
    """The soft one; "unlimited" is none."""
    (tmp_path / "23").mkdir()
    limits = tmp_path / "23" / "limits"
    limits.write_text("Limit\nMax open files            1024                 4096                 files\n")
    assert descriptor_limit(23, tmp_path) == 1024
    limits.write_text("Limit\nMax open files            unlimited            unlimited            files\n")
    assert descriptor_limit(23, tmp_path) is None
