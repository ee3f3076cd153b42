"""Released programs under load: they keep working, and nothing is lost."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import threading
import time
from collections.abc import Iterator

import pytest

from .kernel_objects import changed_text
from .machine import need_tool
from .truth import expect_no_losses


class Memcached:
    """A memcached on a unix socket."""

    def __init__(self, path) -> None:
        self.path = str(path)
        self.process = subprocess.Popen(
            [need_tool("memcached"), "-u", "root", "-s", self.path, "-m", "64", "-t", "2"]
        )
        deadline = time.monotonic() + 10
        while not os.path.exists(self.path):
            assert time.monotonic() < deadline, "memcached did not start"
            time.sleep(0.05)

    def connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self.path)
        connection.settimeout(30)
        return connection

    def version(self) -> bytes:
        with self.connect() as connection:
            connection.sendall(b"version\r\n")
            return connection.recv(100)

    def load(self, client: int, seconds: float) -> int:
        """Store and fetch values of all sizes over many connections; return how many came back right."""
        until = time.monotonic() + seconds
        right = 0
        while time.monotonic() < until:
            with self.connect() as connection, connection.makefile("rwb") as stream:
                for i in range(200):
                    value = b"%d" % (i % 7) * (1 + i * 37 % 4001)
                    stream.write(b"set key-%d-%d 0 0 %d\r\n%b\r\n" % (client, i, len(value), value))
                    stream.flush()
                    assert stream.readline() == b"STORED\r\n"
                    stream.write(b"get key-%d-%d\r\n" % (client, i))
                    stream.flush()
                    header = stream.readline().split()
                    assert stream.read(int(header[3])) == value
                    assert stream.read(7) == b"\r\nEND\r\n"
                    right += 1
        return right


@pytest.fixture
def memcached(tmp_path) -> Iterator[Memcached]:
    server = Memcached(tmp_path / "memcached.sock")
    yield server
    server.process.terminate()
    server.process.wait(timeout=30)


@pytest.mark.long
def test_memcached_under_load_is_traced_without_loss_or_harm(daemon, memcached):
    """Every value comes back right, nothing is lost, and after detach it answers as before."""
    # given memcached under the load of four clients
    tracer = daemon()
    tracer.attach(memcached.process.pid)
    results: list[int] = []
    clients = [threading.Thread(target=lambda i=i: results.append(memcached.load(i, 4.0))) for i in range(4)]
    for client in clients:
        client.start()

    # when it is looked at meanwhile and afterwards
    while any(client.is_alive() for client in clients):
        tracer.top(memcached.process.pid, limit=10)
        time.sleep(0.3)
    report = tracer.top_after_tick(memcached.process.pid)

    # then all clients got their answers, and the figures are complete
    assert len(results) == 4
    assert min(results) > 0
    expect_no_losses(report)
    assert report["process"]["live_bytes"] > 1 << 20, "the cached values are in slabs of 1 MiB"
    assert all(site["live_bytes"] >= 0 and site["live_count"] >= 0 for site in report["sites"])
    functions = {frame["function"] for site in report["sites"] for frame in site["stack"]}
    assert functions & {"malloc", "calloc"}

    # and memcached does not notice the detach
    tracer.detach(memcached.process.pid)
    assert changed_text(memcached.process.pid) == []
    assert memcached.version().startswith(b"VERSION")
    assert memcached.load(9, 0.5) > 0
    assert memcached.process.poll() is None


class Sqlite:
    """The sqlite3 shell on a database in memory, asked a line at a time."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [need_tool("sqlite3"), "-batch", ":memory:"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, sql: str) -> str:
        self.process.stdin.write(f"{sql}\n.print --end--\n")
        self.process.stdin.flush()
        lines = iter(self.process.stdout.readline, "")
        answer = []
        for line in lines:
            if line == "--end--\n":
                return "".join(answer)
            answer.append(line)
        raise AssertionError(f"sqlite3 ended at: {sql}")

    def memory_used(self) -> int:
        """The outstanding memory by SQLite's own count."""
        text = self.ask(".stats on\nSELECT 0;\n.stats off")
        return int(re.search(r"Memory Used:\s+(\d+)", text)[1])


def test_sqlite_building_a_table_agrees_with_its_own_count(daemon):
    """A 101,000-row table is built, indexed and dropped; SQLite's own figure of its memory agrees."""
    # given the shell, warmed up so that its first allocations are over
    shell = Sqlite()
    shell.ask("CREATE TABLE warm(a); INSERT INTO warm VALUES (1); SELECT count(*) FROM warm;")
    before = shell.memory_used()
    tracer = daemon()
    tracer.attach(shell.process.pid)

    # when it builds a table and an index
    answer = shell.ask(
        "CREATE TABLE t(id INTEGER PRIMARY KEY, name TEXT, hash TEXT);"
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 101000)"
        " INSERT INTO t SELECT i, 'name ' || i, hex(i * 2654435761 % 4294967296) FROM n;"
        "CREATE INDEX t_hash ON t(hash);"
        "SELECT count(*), sum(id) FROM t;"
    )
    grown = shell.memory_used() - before

    # then the answer is right, nothing is lost, and both agree on outstanding memory
    assert answer == f"101000|{101000 * 101001 // 2}\n"
    report = tracer.top_after_tick(shell.process.pid)
    expect_no_losses(report)
    assert grown > 1 << 20
    assert report["process"]["live_bytes"] == pytest.approx(grown, rel=0.05)

    # and after the detach it continues and exits normally
    tracer.detach(shell.process.pid)
    assert changed_text(shell.process.pid) == []
    assert shell.ask("SELECT max(id) FROM t;") == "101000\n"
    shell.process.stdin.close()
    assert shell.process.wait(timeout=30) == 0
    shell.process.stdout.close()
