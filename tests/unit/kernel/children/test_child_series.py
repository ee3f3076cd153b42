"""Children that answer one request after another."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from bpfleakd import errors
from bpfleakd.kernel.children.child_series import ChildSeries
from tests.unit.waiting import ends, until

SERVE = """
import os, sys, time
from bpfleakd import errors
from bpfleakd.kernel.children.child_series import serve_series

def main(request):
    {body}

serve_series(main)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Return a function that makes a module with the body of `main`, and returns its name."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))

    def make(body: str) -> str:
        (tmp_path / "series_of_a_test.py").write_text(SERVE.format(body=body.replace("\n", "\n    ")))
        return "series_of_a_test"

    return make


@pytest.fixture
def series(module: Callable[[str], str]) -> Iterator[Callable[[str], ChildSeries]]:
    """Return a function that starts a series with the body of `main`."""
    started: list[ChildSeries] = []

    def start(body: str) -> ChildSeries:
        started.append(ChildSeries(module(body)))
        return started[-1]

    yield start
    for one in started:
        one.close()


def test_each_request_has_a_process_of_its_own(series) -> None:
    """All of them are forks of one, which has imported the modules."""
    child = series("return [request, os.getpid(), os.getppid()]")
    answers = [child.ask({"number": number}, 60.0) for number in range(3)]
    assert [answer[0] for answer in answers] == [{"number": number} for number in range(3)]
    assert len({answer[1] for answer in answers}) == 3
    assert len({answer[2] for answer in answers}) == 1


def test_its_own_errors_do_not_end_it(series) -> None:
    """They reach the daemon as what they are."""
    child = series("if request:\n    raise errors.AccessDenied('no', 'the way out')\nreturn 23")
    with pytest.raises(errors.AccessDenied) as raised:
        child.ask(True, 60.0)
    assert (raised.value.message, raised.value.hint) == ("no", "the way out")
    assert child.ask(False, 60.0) == 23


def test_large_answers_and_many_words(series) -> None:
    """An answer of 8 MB arrives whole; what is printed is no answer, and stops nothing however much it is."""
    child = series("print('x' * (1 << 20))\nos.system('echo y')\nreturn 'z' * (8 << 20)")
    for _number in range(2):
        assert child.ask(None, 60.0) == "z" * (8 << 20)


@pytest.mark.parametrize(
    ("end", "words"),
    [("return 1 / 0", "ended with 1: .*ZeroDivisionError"), ("os.kill(os.getpid(), 9)", "ended with 137: $")],
)
def test_any_other_failure_ends_it(series, end: str, words: str) -> None:
    """A bug, or a signal: a KernelError with its last words, for this request and all further ones."""
    child = series(end)
    for _number in range(2):
        with pytest.raises(errors.KernelError, match=words):
            child.ask(None, 60.0)


def test_a_module_that_does_not_exist() -> None:
    """A child that cannot be started fails at the first request."""
    with (
        closing(ChildSeries("bpfleakd.no_such_module")) as child,
        pytest.raises(errors.KernelError, match="No module named"),
    ):
        child.ask({}, 60.0)


def test_an_answer_that_is_late(series) -> None:
    """It is ended, with what it does."""
    child = series("time.sleep(600)")
    with pytest.raises(errors.KernelError, match=r"did not answer within 0\.5 s"):
        child.ask(None, 0.5)


def test_a_request_that_is_interrupted(series, tmp_path: Path) -> None:
    """From another thread: the child and its fork end, and so does the request."""
    begun, failed = tmp_path / "begun", []
    child = series("with open(request, 'w') as file:\n    file.write(str(os.getpid()))\ntime.sleep(600)")

    def ask() -> None:
        try:
            child.ask(str(begun), 600.0)
        except errors.KernelError as error:
            failed.append(error)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    until(lambda: begun.exists() and begun.read_text())
    fork = os.pidfd_open(int(begun.read_text()))
    child.kill()
    assert ends(asking.join)
    assert len(failed) == 1
    assert select.select([fork], [], [], 30)[0]
    os.close(fork)


@pytest.mark.parametrize("is_at_work", [True, False])
def test_it_ends_with_the_daemon(module, tmp_path: Path, is_at_work: bool) -> None:
    """A killed one, while a request is answered or between two; with it ends its fork."""
    begun = tmp_path / "begun"
    name = module(
        "with open(request[0], 'w') as file:\n    file.write(f'{os.getppid()} {os.getpid()}\\n')\n"
        "time.sleep(request[1])"
    )
    parent = (
        "import time\nfrom bpfleakd.kernel.children.child_series import ChildSeries\n"
        f"ChildSeries({name!r}).ask([{str(begun)!r}, {600 * is_at_work}], 600)\ntime.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", parent]) as process:
        until(lambda: begun.exists() and begun.read_text().endswith("\n"))
        pids = [int(pid) for pid in begun.read_text().split()]
        open_ones = [os.pidfd_open(pid) for pid in (pids if is_at_work else pids[:1])]
        process.kill()
    for one in open_ones:
        assert select.select([one], [], [], 30)[0]
        os.close(one)
