"""The diagnostics protocol, against a small runtime on a real socket."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bpfleakd.process.files.rooted_open import TargetRoot, root_of
from bpfleakd.runtimes.dotnet.diagnostics import DiagnosticsError, Endpoint, Provider, find_endpoint
from bpfleakd.runtimes.dotnet.method_look import take_rundown

from ...helping import helpers
from .fake_runtime import FakeRuntime
from .streams import StreamWriter, method, module

PID, START = 4711, 8_812


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[Callable[..., FakeRuntime]]:
    started: list[FakeRuntime] = []

    def start(name: str = "socket", **options: object) -> FakeRuntime:
        started.append(FakeRuntime(tmp_path / name, **options))  # type: ignore[arg-type]
        return started[-1]

    yield start
    for each in started:
        each.close()


@pytest.fixture
def endpoint(tmp_path: Path) -> Endpoint:
    return Endpoint(TargetRoot(os.getpid(), Path("/")), str(tmp_path / "socket"))


def test_a_rundown(runtime: Callable[..., FakeRuntime], endpoint: Endpoint) -> None:
    """A quiet session that is stopped at once: its end tells the methods."""
    stream = StreamWriter()
    begin = stream.data
    end = stream.events([module(7, "/srv/Shop.dll"), method("Shop.Program", "Main", 0x1000, 64)]).end()
    fake = runtime(begin=begin, end=end[len(begin) :])

    found = take_rundown(helpers(), endpoint)

    assert [code.name for code in found.code] == ["Main"]
    (collect, asked), (stop, number) = fake.received
    assert (collect, stop, struct.unpack("<Q", number)[0]) == (2, 1, 1)
    _buffer, version, providers, keywords, level, units = struct.unpack_from("<IIIQII", asked)
    name = "Microsoft-Windows-DotNETRuntime\0"
    assert (version, providers, keywords, level, units) == (1, 1, 0, 0, len(name))
    assert asked[28:-4].decode("utf-16-le") == name


def test_a_session_without_rundown(runtime: Callable[..., FakeRuntime], endpoint: Endpoint) -> None:
    """By the command that leaves it away, or by the one before where the runtime is older."""
    newer, older = runtime(), runtime("older", commands=(1, 2))
    provider = Provider(1, 4)

    endpoint.start([provider], buffer_mib=1, rundown=False).close()
    Endpoint(endpoint.root, endpoint.path.replace("socket", "older")).start(
        [provider], buffer_mib=1, rundown=False
    ).close()

    ((command, payload),) = newer.received
    assert (command, payload[8]) == (3, 0)
    assert [command for command, _payload in older.received] == [3, 2]


def test_a_process_that_does_not_answer(runtime: Callable[..., FakeRuntime], endpoint: Endpoint) -> None:
    """It may be stopped: it is given up when the time is over."""
    runtime(silent=True)
    with pytest.raises(DiagnosticsError, match="does not answer"):
        take_rundown(helpers(), endpoint, timeout_s=0.3)


def test_a_session_that_never_ends(runtime: Callable[..., FakeRuntime], endpoint: Endpoint) -> None:
    """The stop is refused, and nothing more comes."""
    runtime(begin=StreamWriter().data, commands=(2,))
    with pytest.raises(DiagnosticsError):
        take_rundown(helpers(), endpoint, timeout_s=0.3)


def test_a_socket_of_another_process(runtime: Callable[..., FakeRuntime], tmp_path: Path) -> None:
    """A target may have put it where its own would be: nothing is sent to it."""
    fake = runtime()
    with pytest.raises(DiagnosticsError, match="another process"):
        take_rundown(helpers(), Endpoint(TargetRoot(os.getpid() + 1, Path("/")), str(tmp_path / "socket")))
    assert fake.received == []


@pytest.mark.parametrize("kind", ["missing", "file", "link"])
def test_what_is_no_socket(endpoint: Endpoint, tmp_path: Path, kind: str) -> None:
    """Nothing there, another kind of file, or a link to elsewhere."""
    if kind == "file":
        Path(endpoint.path).write_text("")
    if kind == "link":
        Path(endpoint.path).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DiagnosticsError):
        take_rundown(helpers(), endpoint)


def test_nobody_behind_the_socket(endpoint: Endpoint) -> None:
    """It listens, and never says a word."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(endpoint.path)
        listener.listen()
        # The kernel accepts the connection, but the runtime never answers.
        with pytest.raises(DiagnosticsError):
            take_rundown(helpers(), endpoint, timeout_s=0.2)


class TestWhereItIs:
    """find_endpoint."""

    @pytest.fixture
    def proc(self, tmp_path: Path) -> Path:
        root = tmp_path / "proc" / str(PID) / "root"
        (root / "tmp").mkdir(parents=True)
        (root / "run" / "shop").mkdir(parents=True)
        self.environ(tmp_path / "proc")
        return tmp_path / "proc"

    @staticmethod
    def environ(proc: Path, *variables: str) -> None:
        (proc / str(PID) / "environ").write_bytes("".join(f"{word}\0" for word in variables).encode())

    def test_in_a_container(self, proc: Path) -> None:
        """In its own /tmp, by its own pid."""
        path = proc / str(PID) / "root/tmp" / f"dotnet-diagnostic-1-{START}-socket"
        path.touch()
        assert find_endpoint(PID, 1, START, proc) == Endpoint(root_of(PID, proc), f"/tmp/{path.name}")

    def test_in_its_temporary_directory(self, proc: Path) -> None:
        """TMPDIR of its environment."""
        path = proc / str(PID) / "root/run/shop" / f"dotnet-diagnostic-1-{START}-socket"
        path.touch()
        self.environ(proc, "HOME=/", "TMPDIR=/run/shop/")
        assert find_endpoint(PID, 1, START, proc).path == f"/run/shop/{path.name}"

    def test_in_a_time_namespace(self, proc: Path) -> None:
        """Its start time differs there, so .NET's sockets are searched for it."""
        path = proc / str(PID) / "root/tmp" / "dotnet-diagnostic-1-17-socket"
        path.touch()
        assert find_endpoint(PID, 1, START, proc).path == f"/tmp/{path.name}"
        with pytest.raises(DiagnosticsError):
            find_endpoint(PID, 1, START, proc, exactly=True)

    def test_switched_off(self, proc: Path) -> None:
        """The sentence says by what."""
        self.environ(proc, "DOTNET_EnableDiagnostics=0")
        with pytest.raises(DiagnosticsError, match="EnableDiagnostics=0"):
            find_endpoint(PID, 1, START, proc)

    def test_nowhere(self, proc: Path) -> None:
        with pytest.raises(DiagnosticsError, match="no diagnostics socket"):
            find_endpoint(PID, 1, START, proc)
        with pytest.raises(DiagnosticsError):
            find_endpoint(PID + 1, 1, START, proc)
