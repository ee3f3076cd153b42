"""Helpers: their abilities, their restrictions, and how they end."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bpfleakd.sandbox.channel import HelperFailed
from bpfleakd.sandbox.helpers import Helpers

from ..waiting import ends, until

JOBS = f"{__package__}.jobs_of_tests"


@pytest.fixture(scope="module")
def helpers() -> Iterator[Helpers]:
    made = Helpers([JOBS])
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(Path(__file__).parents[3]), before)))
    try:
        made.answer(f"{JOBS}:echo", None, [], list[str], limit_s=20)
        yield made
    finally:
        made.close()
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before


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
    made = Helpers([JOBS])
    try:
        made.prepare()
        zygote = made._process
        assert zygote is not None
        os.kill(zygote.pid, signal.SIGSTOP)
        threading.Timer(0.8, os.kill, (zygote.pid, signal.SIGCONT)).start()
        assert made.answer(f"{JOBS}:work", 0, [], str, limit_s=20) == "done"
        assert ends(lambda: zygote.wait(20))
    finally:
        made.close()


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
