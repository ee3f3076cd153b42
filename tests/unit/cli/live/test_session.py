"""`bpfleakctl top` on a real terminal, with keys, signals and another size; a daemon that answers as told."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shlex
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from bpfleakd.errors import NotAttached
from bpfleakd.model.groups import GroupKey
from bpfleakd.model.history import StoredHistory, StoredSite
from bpfleakd.model.report import SortKey
from bpfleakd.model.site import AllocationKind

from ...api.serving import FakeService, running
from ...samples import (
    a_grouped_report,
    a_process,
    a_profile,
    a_report,
    a_scan_report,
    a_site,
    a_traced_process,
    a_watched_process,
)
from ..terminal import on_a_terminal

LEAK = a_site("leak_here", site="a" * 16)
CACHE = replace(a_site("fill_cache", site="b" * 16), stack=LEAK.stack[:1])
ON, OFF = "\x1b[?1049h", "\x1b[?1049l"
SHOW_CURSOR = "\x1b[?25h"


def a_history(pid: int, **_: object) -> StoredHistory:
    saved = StoredSite(LEAK.site, AllocationKind.HEAP, "f", "m", 1, 1, (0.0, 3.0 * 2**20), (), (), (), ())
    return StoredHistory(1, "leaky", 60.0, 0.0, 0, 0, (5.0, 10.0), (), (), (), (saved,))


def a_service(**changes):
    answers = {
        "report": lambda pid, **_: a_report(pid, sites=(LEAK, CACHE)),
        "groups": lambda pid, **_: a_grouped_report(),
        "history": a_history,
        "processes": (a_traced_process(4711), a_traced_process(4721)),
        "watched": (),
        "attach": lambda pid, *_, **__: a_traced_process(pid, process=a_process(pid)),
        "detach": lambda pid: a_traced_process(pid, process=a_process(pid)),
    }
    return FakeService(**{**answers, **changes})


def top(path: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "bpfleakd.cli.bpfleakctl", "--socket", str(path), "top", *arguments]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "api.sock"


def test_from_the_list_to_a_stack_and_back_by_keys(path):
    """Processes, call sites, one of them with its history; sort, group, filter, pause, help, quit."""
    service = a_service()
    with running(service, path), on_a_terminal(top(path, "--interval", "0.2")) as terminal:
        assert ON in terminal.until("4721 leaky")
        terminal.press("\x1b[B\r")
        terminal.until("fill_cache")
        terminal.press("g")
        terminal.until("vglc: growth")
        terminal.press("f")
        terminal.until("sfmt: function")
        terminal.until(" sites")
        terminal.press("s")
        terminal.until("fill_cache")
        terminal.press("/leak\r")
        terminal.until("\x1b[1m/leak\x1b[0m")
        terminal.press("\r")
        assert "▁" in terminal.until("0 to 3.00 MiB live, over 10s")
        terminal.press("\x1b[D")
        terminal.until("space pause")
        terminal.press(" ")
        terminal.until("paused")
        terminal.press("?")
        terminal.until("Any key goes back.")
        terminal.press("qq")
        rest, code = terminal.end()
    assert code == 0
    assert OFF in rest
    assert SHOW_CURSOR in rest
    asked = {call[:3] for call in service.calls}
    assert ("processes",) in asked
    assert ("report", 4721, 200) in asked
    assert any(call[0] == "report" and SortKey.GROWTH in call for call in service.calls)
    assert any(call[0] == "groups" and GroupKey.FUNCTION in call for call in service.calls)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)]
)
def test_a_signal_gives_the_terminal_back(path, number, code):
    """Its modes, its screen and its cursor."""
    with running(a_service(), path), on_a_terminal(top(path, "--pid", "4711")) as terminal:
        terminal.until("leak_here")
        os.kill(terminal.pid, number)
        rest, exit_code = terminal.end()
    assert exit_code == code
    assert OFF in rest
    assert SHOW_CURSOR in rest
    assert "Traceback" not in rest


def test_a_shell_gets_its_terminal_back_while_top_is_stopped(path):
    """Ctrl-Z, then `fg`: lines and echo for the shell, the screen again afterwards."""
    shell = ["/bin/bash", "--norc", "--noprofile", "--noediting", "-i"]
    with running(a_service(), path), on_a_terminal(shell, PS1="$ ") as terminal:
        terminal.press(shlex.join(top(path, "--pid", "4711")) + "\n")
        terminal.until("fill_cache")
        terminal.press("\x1a")
        assert OFF in terminal.until("Stopped")
        terminal.press("stty -a | tr ';' ' '; echo 'as''ked'\n")
        modes = terminal.until("asked").split()
        assert {"icanon", "echo"} <= set(modes)
        terminal.press("fg\n")
        assert ON in terminal.until("fill_cache")
        terminal.press("q")
        terminal.until(OFF)
        terminal.press("echo code=$?; exit\n")
        terminal.until("code=0")
        terminal.end()


def test_another_size_of_the_terminal_is_another_screen(path):
    """At once, not with the next answer."""
    with (
        running(a_service(), path),
        on_a_terminal(top(path, "--pid", "4711", "--interval", "60")) as terminal,
    ):
        terminal.until("fill_cache")
        terminal.until("vglc: verdict")
        terminal.resize(16, 60)
        lines = terminal.until("fill_cache").rpartition("\x1b[H")[2].split("\r\n")
        assert {len(re.sub(r"\x1b\[[0-9;]*m", "", line)) for line in lines[:-1]} == {60}
        rest = terminal.until("q quit").split("\r\n")
        assert len(lines) + len(rest) - 1 == 16
        terminal.press("q")
        assert terminal.end()[1] == 0


def test_colour_is_for_terminals_that_want_it(path):
    """NO_COLOR leaves bold and reverse."""
    for environment, coloured in (({}, True), ({"NO_COLOR": "1"}, False)):
        with (
            running(a_service(), path),
            on_a_terminal(top(path, "--pid", "4711"), **environment) as terminal,
        ):
            screen = terminal.until("fill_cache")
            terminal.press("q")
            terminal.end()
        assert ("31m" in screen) == coloured


def test_a_process_that_ends_leads_back_to_the_list(path):
    """With a message; a user who opened only that process gets an error."""

    def ended(pid: int, **_: object) -> object:
        return NotAttached(f"process {pid} is not traced", f"bpfleakctl attach {pid}")

    with running(a_service(report=ended), path), on_a_terminal(top(path)) as terminal:
        terminal.until("4721 leaky")
        terminal.press("\r")
        terminal.until("process 4711 is not traced")
        terminal.press("q")
        assert terminal.end()[1] == 0
    with running(a_service(report=ended), path), on_a_terminal(top(path, "--pid", "4711")) as terminal:
        rest, code = terminal.end()
    assert code == NotAttached.exit_code
    assert rest.rstrip().endswith("bpfleakctl attach 4711")
    assert rest.index(OFF) < rest.index("not traced")


def test_keys_work_while_the_daemon_takes_its_time(path):
    """Requests to the daemon run in a separate thread."""
    key_has_worked = threading.Event()

    async def slow(pid: int, **_: object) -> object:
        await asyncio.to_thread(key_has_worked.wait, 30)
        return a_report(pid)

    with running(a_service(report=slow), path), on_a_terminal(top(path, "--pid", "4711")) as terminal:
        terminal.until("waiting for the daemon")
        terminal.press("?")
        terminal.until("Any key goes back.")
        key_has_worked.set()
        terminal.press("q")
        assert terminal.end()[1] == 0


def test_a_restart_of_the_daemon_ends_nothing(path):
    """The last answer stays, with a note, until the next daemon answers."""
    with contextlib.ExitStack() as first:
        first.enter_context(running(a_service(), path))
        with on_a_terminal(top(path, "--pid", "4711", "--interval", "0.2")) as terminal:
            terminal.until("fill_cache")
            first.close()
            terminal.until("reconnecting")
            with running(a_service(), path):
                terminal.until("connected again")
                terminal.press("q")
                assert terminal.end()[1] == 0


def until_called(service: FakeService, call: tuple[str, int]) -> None:
    deadline_s = time.monotonic() + 60
    while call not in [made[:2] for made in service.calls]:
        assert time.monotonic() < deadline_s, service.calls
        time.sleep(0.05)
    # An action that is under way refuses the next.
    time.sleep(0.5)


def test_actions_by_keys(path, tmp_path, monkeypatch):
    """Attach, detach after a question, scan, save a flame graph; the answers are on the screen."""
    monkeypatch.chdir(tmp_path)
    service = a_service(watched=(a_watched_process(4723),), scan=a_scan_report(), profile=a_profile())
    with running(service, path), on_a_terminal(top(path, "--interval", "0.2")) as terminal:
        terminal.until("2 traced, 1 watched")
        terminal.press("d")
        terminal.until("stop tracing 4711? y/N")
        terminal.press("n")
        terminal.until("q quit")
        terminal.press("dy")
        terminal.until("detached from 4711")
        terminal.press("\x1b[F")
        terminal.until("3 of 3")
        terminal.press("a")
        # Its answer may be overwritten before it is read, while the machine is busy.
        until_called(service, ("attach", 4723))
        terminal.press("x")
        terminal.until("scanned 101 MiB")
        terminal.press("\x1b[D")
        terminal.until("3 of 3")
        terminal.press("e")
        until_called(service, ("profile", 4723))
        terminal.press("q")
        assert terminal.end()[1] == 0
    assert (tmp_path / "bpfleakd-4723.html").read_text().startswith("<!DOCTYPE html>")
    calls = [call[:2] for call in service.calls]
    assert {("detach", 4711), ("attach", 4723), ("scan", 4723), ("profile", 4723)} <= set(calls)
    assert ("detach", 4723) not in calls
