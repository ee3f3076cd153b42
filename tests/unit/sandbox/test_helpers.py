"""Helpers: their abilities, their restrictions, and how they end."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bpfleakd.sandbox.channel import HelperFailed
from bpfleakd.sandbox.helpers import Helpers
from bpfleakd.threads import begin_thread, lower, restore

from ..scheduling import IDLE
from ..waiting import ends, until

JOBS = f"{__package__}.jobs_of_tests"


@pytest.fixture(scope="module", autouse=True)
def _path() -> Iterator[None]:
    """The zygote finds the jobs of tests."""
    with pytest.MonkeyPatch.context() as changes:
        known = os.environ.get("PYTHONPATH")
        changes.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(Path(__file__).parents[3]), known))))
        yield


@pytest.fixture(scope="module")
def helpers() -> Iterator[Helpers]:
    made = Helpers([JOBS])
    try:
        made.answer(f"{JOBS}:echo", None, [], list[str], limit_s=20)
        yield made
    finally:
        made.close()


def test_files_come_open_and_answers_in_order(helpers: Helpers, tmp_path: Path) -> None:
    """A helper reads the files that it gets, and may answer more than once."""
    (tmp_path / "one").write_text("first")
    with (tmp_path / "one").open() as file:
        answers = list(
            helpers.answers(f"{JOBS}:echo", {"n": 23}, [file.fileno()], Any, limit_s=20, answers_max=2)
        )
    assert answers == [["first"], {"n": 23}]


def test_it_says_what_it_took(helpers: Helpers) -> None:
    """CPU time, after its answers, and only on request."""
    took_s: list[float] = []
    answers = helpers.answers(f"{JOBS}:work", 0.1, [], str, limit_s=20, on_spent=took_s.append)
    assert list(answers) == ["done"]
    assert len(took_s) == 1
    assert 0.1 <= took_s[0] < 0.3
    assert list(helpers.answers(f"{JOBS}:work", 0, [], Any, limit_s=20)) == ["done"]


def test_a_job_ends_when_its_cpu_time_is_over(helpers: Helpers) -> None:
    """Long before the time by the clock."""
    with pytest.raises(HelperFailed):
        list(helpers.answers(f"{JOBS}:spin", None, [], str, limit_s=60, cpu_s=1, on_spent=[].append))


def test_it_has_no_rights(helpers: Helpers, tmp_path: Path) -> None:
    """It cannot open, start, signal or write anything; a descriptor for reading cannot be written to."""
    path = tmp_path / "kept"
    path.write_text("as it was")
    with path.open() as file:
        assert helpers.answer(f"{JOBS}:attempts", None, [file.fileno()], list[str], limit_s=20) == []
    assert path.read_text() == "as it was"


def test_the_process_that_helpers_are_forked_from(helpers: Helpers) -> None:
    """It has no capabilities, no new privileges and a filter for system calls."""
    helpers.answer(f"{JOBS}:echo", None, [], list[str], limit_s=20)
    assert helpers._process is not None
    status = Path(f"/proc/{helpers._process.pid}/status").read_text().splitlines()
    values = dict(line.split(":\t", 1) for line in status if ":\t" in line)
    assert {values[name].strip("0") for name in ("CapEff", "CapPrm", "CapInh", "CapAmb")} == {""}
    assert (values["NoNewPrivs"], values["Seccomp"]) == ("1", "2")
    if os.geteuid() == 0:
        assert values["CapBnd"].strip("0") == ""
        assert _is_nobodys(values["Uid"])
        assert _is_nobodys(values["Gid"])


def _is_nobodys(ids: str) -> bool:
    """Whether no process has this user or group, not even one of the user nobody, who could stop a helper."""
    (number,) = set(ids.split())
    return 1 << 31 <= int(number) < (1 << 32) - 1


def test_one_that_goes_on_for_ever_is_ended(helpers: Helpers) -> None:
    """By its own clock; the next job is done as if nothing had been."""
    failures: list[HelperFailed] = []

    def spin() -> None:
        try:
            helpers.answer(f"{JOBS}:spin", None, [], str, limit_s=0.5)
        except HelperFailed as failure:
            failures.append(failure)

    assert ends(spin)
    assert len(failures) == 1
    assert helpers.answer(f"{JOBS}:echo", None, [], list[str], limit_s=20) == []


def test_one_that_ends_early(helpers: Helpers) -> None:
    """Its earlier answers count; the missing rest is not an error."""
    assert list(helpers.answers(f"{JOBS}:die", None, [], str, limit_s=20)) == ["before"]


def test_memory_is_limited(helpers: Helpers) -> None:
    """It has the error, and the daemon the reason."""
    with pytest.raises(HelperFailed, match="MemoryError"):
        helpers.answer(f"{JOBS}:fill", None, [], int, limit_s=20)


def test_a_zygote_that_was_killed_is_started_again(helpers: Helpers) -> None:
    """The job that finds it gone does so."""
    assert helpers._process is not None
    helpers._process.kill()
    helpers._process.wait()
    assert helpers.answer(f"{JOBS}:echo", None, [], list[str], limit_s=20) == []


def test_ctrl_c_leaves_the_zygote_to_the_daemon(helpers: Helpers) -> None:
    """A terminal sends SIGINT to the whole group, and the daemon still needs its helpers to end in order."""
    assert helpers.answer(f"{JOBS}:echo", None, [], list[str], limit_s=20) == []
    zygote = helpers._process
    assert zygote is not None
    assert os.getpgid(zygote.pid) == zygote.pid


def test_a_zygote_that_is_started_before_a_job_does_it(helpers: Helpers) -> None:
    """Repeated starts give one zygote, which ends with its helpers."""
    others = _zygotes()
    made = Helpers([JOBS])
    try:
        made.prepare_soon()
        made.prepare_soon()
        until(lambda: _zygotes() - others)
        assert made.answer(f"{JOBS}:work", 0, [], str, limit_s=20) == "done"
        assert len(_zygotes() - others) == 1
    finally:
        made.close()
    assert _zygotes() == others


def test_a_zygote_with_orders_is_not_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine it has not begun with an order when an idle one would be ended."""
    monkeypatch.setattr("bpfleakd.sandbox.helpers._IDLE_S", 0.2)
    with contextlib.closing(Helpers([JOBS])) as made:
        made.prepare()
        zygote = made._process
        assert zygote is not None
        zygote.send_signal(signal.SIGSTOP)
        # By Popen, which knows whether it has ended: killing it by its pid would be an error then.
        continued = threading.Timer(0.8, zygote.send_signal, (signal.SIGCONT,))
        continued.start()
        assert made.answer(f"{JOBS}:work", 0, [], str, limit_s=20) == "done"
        assert ends(lambda: zygote.wait(20))
        continued.join()


class Priorities:
    """The changes of scheduling classes by Helpers, each with the class afterwards."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[int] = []
        for name, change in (("lower", lower), ("restore", restore)):
            noted = partial(self._note, change)
            monkeypatch.setattr(f"bpfleakd.sandbox.helpers.{name}", noted)

    def _note(self, change: Callable[[int], None], pid: int) -> None:
        change(pid)
        self.seen.append(os.sched_getscheduler(pid))


@pytest.mark.parametrize("limit_s", [60.0, 0.001])
def test_a_zygote_starts_at_idle_priority(limit_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a limited time. It is not idle afterwards."""
    monkeypatch.setattr("bpfleakd.sandbox.helpers._IDLE_START_S", limit_s)
    changes = Priorities(monkeypatch)
    made = Helpers([JOBS])
    try:
        assert list(made.answers(f"{JOBS}:work", 0, [], str, limit_s=20, idle_s=20)) == ["done"]
        assert made._process is not None
        assert os.sched_getscheduler(made._process.pid) == os.SCHED_OTHER
    finally:
        made.close()
    if IDLE == os.SCHED_IDLE:
        assert changes.seen == [IDLE, os.SCHED_OTHER][: 2 if limit_s < 1 else 1]


def _prepare(made: Helpers) -> None:
    made.prepare()


def _order(made: Helpers) -> None:
    assert made.answer(f"{JOBS}:work", 0, [], str, limit_s=20) == "done"


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("hurry", [_prepare, _order])
def test_a_zygote_that_is_waited_for_is_not_idle(
    hurry: Callable[[Helpers], None], is_late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it has begun to start at idle priority or not."""
    monkeypatch.setattr("bpfleakd.sandbox.helpers._IDLE_START_S", 60.0)
    changes = Priorities(monkeypatch)
    made = Helpers([JOBS])
    try:
        if is_late:
            answers = made.answers(f"{JOBS}:work", 0, [], str, limit_s=20, idle_s=20)
            order = begin_thread("order", list, answers)
            until(lambda: changes.seen or IDLE != os.SCHED_IDLE)
            hurry(made)
            order.join()
        else:
            hurry(made)
    finally:
        made.close()
    if IDLE == os.SCHED_IDLE:
        assert changes.seen == [IDLE, os.SCHED_OTHER] * is_late


def test_a_job_that_nobody_waits_for_is_idle(helpers: Helpers, tmp_path: Path) -> None:
    """One that somebody waits for is not."""
    seen: list[set[int]] = []
    for is_urgent in (False, True):
        if is_urgent:
            helpers.prepare()
        else:
            helpers._usual_until_s = -math.inf
        path = tmp_path / "text"
        path.write_text("")
        with path.open() as file:
            job = f"{JOBS}:wait_for_text"
            answers = helpers.answers(job, None, [file.fileno()], str, limit_s=60, idle_s=60)
            order = begin_thread("order", list, answers)
            until(lambda: _children(helpers))
            seen.append(_children(helpers))
            path.write_text("text")
            order.join()
            until(lambda: not _children(helpers))
    assert seen == [{IDLE}, {os.SCHED_OTHER}]


def test_a_job_without_an_idle_core_is_ordered_again(helpers: Helpers) -> None:
    """At usual priority, like the next ones. Each answer comes once, and so does the time that it took."""
    arguments = {"limit_s": 20, "idle_s": 0.2}
    for on_spent in ((took_s := list[float]()).append, None):
        helpers._usual_until_s = -math.inf
        answers = helpers.answers(f"{JOBS}:work", 0.4, [], str, on_spent=on_spent, **arguments)
        assert list(answers) == ["done"]
        assert helpers._usual_until_s > time.monotonic()
    assert len(took_s) == 1


def _children(helpers: Helpers) -> set[int]:
    """The scheduling classes of the jobs in progress, which have worked for a while."""
    assert helpers._process is not None
    zygote = helpers._process.pid
    found = set()
    for pid in Path(f"/proc/{zygote}/task/{zygote}/children").read_text().split():
        with contextlib.suppress(OSError):
            state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            if state != "Z" and int(fields[10]) + int(fields[11]) > 1:
                found.add(os.sched_getscheduler(int(pid)))
    return found


def _zygotes() -> set[int]:
    """Our children that helpers are forked from; those that have ended have no command line."""
    found = set()
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((directory / "stat").read_text().rpartition(")")[2].split()[1])
            is_zygote = b"bpfleakd.sandbox.zygote" in (directory / "cmdline").read_bytes()
        except OSError:
            continue
        if parent == os.getpid() and is_zygote:
            found.add(int(directory.name))
    return found
