"""Client and server over real sockets: answers, and what remains on disk."""

from __future__ import annotations

import asyncio
import contextlib
import grp
import http.client
import json
import os
import pwd
import socket
import stat
import tempfile
import threading
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from bpfleakd import errors
from bpfleakd.api.client import DaemonClient
from bpfleakd.api.connection import Deadlines
from bpfleakd.api.server import ApiServer
from bpfleakd.model.groups import GroupKey
from bpfleakd.model.process import ProcessRow
from bpfleakd.model.report import SortKey

from ..samples import (
    a_blocks_report,
    a_grouped_report,
    a_report,
    a_site,
    a_traced_process,
    an_address_space,
    some_stats,
)
from .serving import FakeService, exposition, running


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run/bpfleakd.sock"


def start_only(path: Path, **options) -> None:
    """Start a server and stop it again."""

    async def both() -> None:
        server = ApiServer(FakeService(), exposition, socket_path=path, **options)
        await server.start()
        await server.stop()

    asyncio.run(both())


# -- what arrives ------------------------------------------------------------------------------------------


def test_everything_arrives_as_it_was_sent(path):
    """The client returns the same values that the service gave."""
    traced, report = a_traced_process(), a_report(sites=(a_site(), a_site(None, truncated=None)))
    service = FakeService(
        attach=traced,
        detach=traced,
        processes=(traced, traced),
        report=report,
        address_space=an_address_space(),
        groups=a_grouped_report(23),
        blocks=a_blocks_report(23),
        stats=some_stats(),
    )
    with running(service, path):
        client = DaemonClient(path)
        assert client.attach(23) == traced
        assert client.detach(23) == traced
        assert client.processes() == (traced, traced)
        assert client.report(23, limit=7, sort=SortKey.COUNT) == report
        assert client.report(23) == report
        assert client.groups(23, by=GroupKey.MODULE, limit=7, sort=SortKey.LIVE) == a_grouped_report(23)
        assert client.blocks(23) == a_blocks_report(23)
        assert client.blocks(23, site="5d41402abc4b2a76", older_than_s=61.5, limit=7) == a_blocks_report(23)
        assert client.address_space(23) == an_address_space()
        assert client.stats() == some_stats()
    assert service.calls == [
        ("attach", 23, None, False),
        ("detach", 23),
        ("processes",),
        ("report", 23, 7, SortKey.COUNT, True),
        ("report", 23, None, SortKey.VERDICT, True),
        ("groups", 23, GroupKey.MODULE, 7, SortKey.LIVE, True),
        ("blocks", 23, None, 0.0, 1_000, True),
        ("blocks", 23, "5d41402abc4b2a76", 61.5, 7, True),
        ("address_space", 23),
        ("stats",),
    ]


@pytest.mark.parametrize(
    "kind", [errors.NoSuchProcess, errors.NotAttached, errors.AccessDenied, errors.KernelUnsupported]
)
def test_an_error_arrives_as_its_class(path, kind):
    """So the command exits with the right code."""
    service = FakeService(attach=kind("the fact", "the way out"))
    with running(service, path), pytest.raises(kind) as caught:
        DaemonClient(path).attach(1)
    assert (type(caught.value), caught.value.message, caught.value.hint) == (kind, "the fact", "the way out")


def test_many_clients_at_once(path):
    """One that waits does not hold up the others."""

    waiting: list[int] = []
    all_are_here = asyncio.Event()

    async def together(pid: int, *_: object, **_options: object) -> ProcessRow:
        waiting.append(pid)
        if len(waiting) == 23:
            all_are_here.set()
        await all_are_here.wait()
        return a_traced_process(pid)

    with running(FakeService(attach=together), path):
        answers: list[int] = []
        threads = [
            threading.Thread(target=lambda n=n: answers.append(DaemonClient(path).attach(n).process.pid))
            for n in range(1, 24)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(answers) == list(range(1, 24))


def test_tcp_reads_and_refuses_to_change(path):
    """The same figures over TCP, but no attach."""
    with running(FakeService(stats=some_stats()), path, tcp=True) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.tcp_port, timeout=5)
        connection.request("GET", "/v1/status")
        assert json.loads(connection.getresponse().read())["ticks"] == 311
        connection.request("GET", "/metrics", headers={"Accept": "text/plain"})
        response = connection.getresponse()
        assert response.read() == b"accepted text/plain\n"
        assert response.getheader("server") is None
        connection.request("POST", "/v1/processes/1")
        response = connection.getresponse()
        assert response.status == 405
        assert "unix socket" in json.loads(response.read())["error"]["hint"]
        connection.close()


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:9797", 200),
        ("metrics.localhost:9797", 200),
        ("127.0.0.1:9797", 200),
        ("127.8.8.8", 200),
        ("[::1]:9797", 200),
        ("example.org:9797", 421),
        ("localhost.example.org", 421),
        ("127.0.0.1.example.org", 421),
        ("example.org@localhost", 421),
        ("localhost:9797 example.org", 421),
        ("", 421),
    ],
)
def test_tcp_on_loopback_answers_to_no_name_of_the_world(path, host, status):
    """DNS rebinding: a web page whose name resolves to 127.0.0.1 must not read the answers."""
    with running(FakeService(stats=some_stats()), path, tcp=True) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.tcp_port, timeout=5)
        connection.request("GET", "/v1/status", headers={"Host": host})
        response = connection.getresponse()
        body = json.loads(response.read())
        connection.close()
    assert response.status == status
    if status == 421:
        assert body["error"]["code"] == "not-this-host"
        assert host in body["error"]["message"]


def test_an_address_for_other_machines_answers_to_any_name(path):
    """They know this machine by a name of the world."""
    with running(FakeService(stats=some_stats()), path, tcp="0.0.0.0") as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.tcp_port, timeout=5)
        connection.request("GET", "/v1/status", headers={"Host": "leaky.example.org:9797"})
        assert connection.getresponse().status == 200
        connection.close()


def test_attach_and_detach_are_logged_with_the_user(path):
    """With user and process, as the kernel reports them; read requests are not logged."""
    service = FakeService(attach=a_traced_process(), detach=a_traced_process(), stats=some_stats())
    with capture_logs() as lines, running(service, path):
        client = DaemonClient(path)
        client.stats()
        client.attach(23)
        client.detach(23)
    me = {"by_user": pwd.getpwuid(os.geteuid()).pw_name, "by_uid": os.geteuid(), "by_pid": os.getpid()}
    assert [line for line in lines if "by_pid" in line] == [
        {"event": "api.attach", "log_level": "info", "pid": 23, **me},
        {"event": "api.detach", "log_level": "info", "pid": 23, **me},
    ]


def test_rubbish_on_the_socket_does_not_end_the_daemon(path):
    """A request that is none gets 400, and the next one an answer."""
    with running(FakeService(stats=some_stats()), path):
        for rubbish in (b"\x00\xff\x1b]0;x\x07\r\n\r\n", b"GET / HTTP/9\r\n\r\n", b"GET " + b"x" * 200_000):
            with socket.socket(socket.AF_UNIX) as raw:
                raw.settimeout(5)
                raw.connect(str(path))
                raw.sendall(rubbish)
                assert raw.recv(4096).startswith(b"HTTP/1.1 400")
        assert DaemonClient(path).stats() == some_stats()


# -- what remains on disk ----------------------------------------------------------------------------------


def test_the_socket_comes_and_goes(path):
    """Its directory is made, only owner and group may use it, and the file is gone afterwards."""
    with running(FakeService(), path):
        mode = path.lstat().st_mode
        assert stat.S_ISSOCK(mode)
        assert stat.S_IMODE(mode) == 0o660
    assert list(path.parent.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to any group: run as root")
def test_the_socket_is_its_groups(path):
    """Its members may connect."""
    with running(FakeService(stats=some_stats()), path, group=grp.getgrgid(65534).gr_name):
        status = path.lstat()
        assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (0, 65534, 0o660)


def test_without_the_group_the_socket_stays_our_own(path):
    """The daemon starts all the same, and its log says what to do."""
    with capture_logs() as lines, running(FakeService(), path, group="no-such-group"):
        assert path.lstat().st_gid == os.getegid()
    (line,) = [line for line in lines if line["event"] == "api.only-root"]
    assert "no-such-group" in line["reason"]
    assert line["hint"].startswith("groupadd --system no-such-group")


def test_the_socket_of_a_dead_daemon_is_replaced(path):
    """After a kill -9, nothing has to be removed manually."""
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with running(FakeService(stats=some_stats()), path):
        assert DaemonClient(path).stats() == some_stats()


def test_a_living_daemon_is_not_replaced(path):
    """Its pid is named, and it continues to answer."""
    with running(FakeService(stats=some_stats()), path):
        words = rf"a daemon \(pid {os.getpid()}\) already answers on {path}"
        with pytest.raises(errors.BpfleakdError, match=words):
            start_only(path)
        assert DaemonClient(path).stats() == some_stats()


def test_a_file_that_is_no_socket_is_left_alone(path):
    """Nothing is removed that we did not make."""
    path.parent.mkdir()
    path.write_text("precious")
    with pytest.raises(errors.ConfigError, match="exists and is not a socket"):
        start_only(path)
    assert path.read_text() == "precious"


def test_another_daemons_socket_is_not_removed_at_stop(path):
    """If the file was replaced meanwhile, it is not ours any more."""
    with running(FakeService(), path):
        path.unlink()
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(path))
    assert path.exists()


def test_a_path_that_cannot_be_made_is_an_error(tmp_path):
    """Too long for an address, or below a file."""
    with pytest.raises(errors.ConfigError, match=r"^socket: cannot create .*AF_UNIX path too long"):
        start_only(tmp_path / ("x" * 120))
    (tmp_path / "file").touch()
    with pytest.raises(errors.ConfigError, match=r"^socket: cannot create .*exists"):
        start_only(tmp_path / "file/bpfleakd.sock")


def test_a_port_in_use_is_an_error_that_names_the_key(path):
    """And the unix socket is gone again: nothing is left half started."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            errors.ConfigError, match=rf"metrics\.port: 127\.0\.0\.1:{port} is in use"
        ) as caught:
            start_only(path, tcp=("127.0.0.1", port))
    assert "metrics.enabled: false" in caught.value.hint
    assert not path.exists()


def test_an_address_of_another_machine_is_an_error_that_names_the_key(path):
    """192.0.2.0/24 is reserved for documentation (RFC 5737)."""
    with pytest.raises(errors.ConfigError, match=r"^metrics\.address: cannot listen on 192\.0\.2\.1:9797"):
        start_only(path, tcp=("192.0.2.1", 9797))
    words = r"^metrics\.address: no\.such\.host\.invalid is not an address"
    with pytest.raises(errors.ConfigError, match=words):
        start_only(path, tcp=("no.such.host.invalid", 9797))


def test_a_port_can_be_had_again_at_once(path):
    """A restart does not wait for the connections of the last run."""
    with running(FakeService(stats=some_stats()), path, tcp=True) as server:
        port = server.tcp_port
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request("GET", "/v1/status")
        connection.getresponse().read()
    start_only(path, tcp=("127.0.0.1", port))
    connection.close()


def test_stop_may_come_twice_and_before_start(path):
    """As happens when something else fails on the way up."""

    async def run() -> None:
        server = ApiServer(FakeService(), exposition, socket_path=path)
        await server.stop()
        await server.start()
        await server.stop()
        await server.stop()

    asyncio.run(run())


def test_stop_does_not_wait_for_idle_clients(path):
    """A connection that is kept open, and one that never asked, do not hold up the daemon's end."""
    with running(FakeService(stats=some_stats()), path, tcp=True) as server:
        silent = socket.create_connection(("127.0.0.1", server.tcp_port))
        # With the answer to this one, that one has been accepted too.
        kept = http.client.HTTPConnection("127.0.0.1", server.tcp_port, timeout=5)
        kept.request("GET", "/v1/status")
        kept.getresponse().read()
    kept.close()
    silent.close()


@pytest.mark.parametrize("turns", range(5))
def test_a_client_that_comes_as_the_daemon_stops_is_not_left_waiting(path, turns):
    """Its connection ends with the others, whichever turn of the loop it was made in."""

    async def run() -> bytes:
        server = ApiServer(FakeService(), exposition, socket_path=path, deadlines=Deadlines(60, 60))
        await server.start()
        with socket.socket(socket.AF_UNIX) as late:
            late.settimeout(10)
            late.connect(str(path))
            for _ in range(turns):
                await asyncio.sleep(0)
            await server.stop()
            try:
                return await asyncio.to_thread(late.recv, 1)
            except ConnectionResetError:
                return b""

    assert asyncio.run(run()) == b""


# -- without a daemon --------------------------------------------------------------------------------------


def test_no_socket_file(path):
    """The path tried, and how to start the daemon."""
    with pytest.raises(errors.DaemonUnreachable, match=f"no daemon: there is no {path}") as caught:
        DaemonClient(path).stats()
    assert "systemctl start bpfleakd" in caught.value.hint
    assert caught.value.exit_code == 3


def test_a_socket_without_a_daemon(path):
    """The daemon was killed."""
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with pytest.raises(errors.DaemonUnreachable, match=f"no daemon answers on {path}"):
        DaemonClient(path).stats()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user: run as root")
def test_no_access_to_the_socket():
    """A user without write access is told how to get it; nothing is attached."""
    group = grp.getgrgid(12).gr_name
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        Path(directory).chmod(0o755)
        path = Path(directory, "bpfleakd.sock")
        stack.enter_context(running(FakeService(), path, group=group))
        way_in = f"usermod -aG {group} USER"
        child = os.fork()
        if child == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            try:
                DaemonClient(path).attach(1)
            except errors.AccessDenied as denied:
                os._exit(0 if str(path) in denied.message and way_in in denied.hint else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.fixture
def silent_socket(path: Path):
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        yield listener


def test_a_daemon_that_does_not_answer(path, silent_socket):
    """The client does not wait forever."""
    with pytest.raises(errors.DaemonUnreachable, match=r"did not answer within 0\.1 s"):
        DaemonClient(path, timeout_s=0.1).stats()


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (b"", errors.DaemonUnreachable, "closed the connection without an answer"),
        (b"SSH-2.0-x\r\n", errors.DaemonUnreachable, "closed the connection without an answer"),
        (
            b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n{}",
            errors.DaemonUnreachable,
            "closed the connection",
        ),
        (b"HTTP/1.1 200 OK\r\n\r\nhello", errors.BpfleakdError, "cannot be parsed"),
        (b"HTTP/1.1 200 OK\r\n\r\n{}", errors.BpfleakdError, "cannot be parsed"),
        (b"HTTP/1.1 500 Oh\r\n\r\noh", errors.BpfleakdError, "status 500"),
        (
            b'HTTP/1.1 418 T\r\n\r\n{"error":{"code":"new","message":"m"}}',
            errors.BpfleakdError,
            "^m$",
        ),
    ],
)
def test_a_daemon_that_answers_strangely(path, silent_socket, answer, kind, words):
    """Another program on the socket, another version, or a crash on the way: an error of ours."""

    def serve() -> None:
        connection, _ = silent_socket.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    with pytest.raises(kind, match=words) as caught:
        DaemonClient(path, timeout_s=5).stats()
    thread.join()
    assert type(caught.value) is kind
