"""Children that answer, fail, print, die and hang."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from bpfleakd import errors
from bpfleakd.kernel.children.child import end_ahead, expect_ahead, run_child, start_ahead
from tests.unit.waiting import until

SERVE = """
import ctypes, os, sys, time
from bpfleakd import errors
from bpfleakd.kernel.children.child import serve
"""
CHILD = "bpfleakd.kernel.children.child"


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that makes a module of a `main` and runs it as a child."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))

    def run(body: str, request: object = None, before: str = "", timeout_s: float = 60.0) -> object:
        source = f"{SERVE}{before}\ndef main(request):\n    {body}\nserve(main)\n"
        (tmp_path / "child_of_a_test.py").write_text(source)
        return run_child("child_of_a_test", request, timeout_s)

    return run


def test_values_go_there_and_back(child) -> None:
    """A request is given to `main` and its result comes back, whatever bytes are in names."""
    request = {"path": "/tmp/\udcff\n\u202e", "numbers": [23, 1.5, -(1 << 70)], "nothing": None}
    assert child("return [request]", request) == [request]


def test_results_that_are_false_are_results(child) -> None:
    """None is an answer like any other."""
    assert child("return None") is None


@pytest.mark.parametrize("error", [errors.BadElf, errors.KernelUnsupported, errors.AccessDenied])
def test_errors_cross_as_what_they_are(child, error: type[errors.BpfleakdError]) -> None:
    """Class, message and hint of an error of ours arrive at the daemon."""
    with pytest.raises(errors.BpfleakdError) as raised:
        child(f"raise errors.{error.__name__}('the fact: \\udcff', 'the way out')")
    assert type(raised.value) is error
    assert (raised.value.message, raised.value.hint) == ("the fact: \udcff", "the way out")


def test_an_error_without_a_hint(child) -> None:
    """An empty hint stays empty."""
    with pytest.raises(errors.NoAllocator) as raised:
        child("raise errors.NoAllocator('none')")
    assert raised.value.hint == ""


def test_any_other_exception_is_ours(child) -> None:
    """A bug in the child is a KernelError with the end of its traceback."""
    with pytest.raises(errors.KernelError, match=r"ended with 1: .*ZeroDivisionError"):
        child("return 1 / 0")


def test_a_module_that_does_not_exist() -> None:
    """So is a child that cannot be started."""
    with pytest.raises(errors.KernelError, match="No module named"):
        run_child("bpfleakd.no_such_module", {})


@pytest.mark.parametrize("end", ["os._exit(3)", "os.kill(os.getpid(), 9)", "os._exit(0)"])
def test_a_child_that_dies_without_a_word(child, end: str) -> None:
    """Killed or gone without an answer, even with success: a KernelError that says how it ended."""
    with pytest.raises(errors.KernelError, match=r"child_of_a_test ended with (3|-9|0)"):
        child(end)


@pytest.mark.parametrize(
    "noise",
    [
        "print('before')",
        "print('in the same line', end='')",
        "os.write(1, b'by a system call')",
        "ctypes.CDLL(None).printf(b'by a C library, which is written out at the exit')",
        "os.system('echo by a child of the child')",
    ],
)
def test_what_libraries_print_is_not_the_reply(child, noise: str) -> None:
    """Standard output belongs to the reply, whatever prints and whenever it is flushed."""
    assert child(f"{noise}; return 23") == 23


def test_what_was_printed_is_there_if_it_dies(child) -> None:
    """The noise of a library is among the last words of a child that failed."""
    with pytest.raises(errors.KernelError, match="the verifier refuses"):
        child("os.write(1, b'the verifier refuses\\n'); os._exit(1)")


def test_ctrl_c_in_a_terminal_does_not_reach_a_child(child) -> None:
    """A terminal signals the daemon's whole process group; a child is in one of its own."""
    assert child("return os.getpgid(0) == os.getpid()") is True


def test_a_child_that_hangs(child) -> None:
    """It is ended after its timeout, which the error states."""
    with pytest.raises(errors.KernelError, match=r"did not end within 0\.5 s"):
        child("time.sleep(600)", timeout_s=0.5)


def test_a_child_ends_with_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed daemon cannot end its children; one that goes on would pin programs that nobody removes."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))
    main = "def main(request):\n    open(request, 'w').write(str(os.getpid()))\n    time.sleep(60)\n"
    (tmp_path / "child_of_a_test.py").write_text(f"{SERVE}{main}serve(main)\n")
    begun = tmp_path / "begun"
    parent = f"from {CHILD} import run_child; run_child('child_of_a_test', {str(begun)!r})"
    with subprocess.Popen([sys.executable, "-c", parent]) as process:
        until(lambda: begun.exists() and begun.read_text())
        child = os.pidfd_open(int(begun.read_text()))
        process.kill()
    ended, _, _ = select.select([child], [], [], 30)
    os.close(child)
    assert ended


def test_the_current_directory_is_not_searched(
    child, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon runs as root: it must not import another user's json.py."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "json.py").write_text("raise SystemExit('imported from the current directory')\n")
    monkeypatch.chdir(elsewhere)
    assert child("return 23") == 23


def test_a_child_that_was_started_ahead_is_the_one_that_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once; the next request starts another."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))
    module = tmp_path / "child_of_a_test.py"
    module.write_text(f"{SERVE}serve(lambda request: os.getpid())\n")
    before = _children()  # those of other tests
    start_ahead("child_of_a_test")
    (ahead,) = _children() - before
    first = run_child("child_of_a_test", None)
    assert first == ahead
    assert run_child("child_of_a_test", None) != first


def test_a_child_prepares_what_is_expected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It prepares before the request, and then answers it."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))
    begun = tmp_path / "begun"
    source = f"{SERVE}expected = []\ndef prepare(request):\n    expected.append(request)\n"
    source += "    open(request, 'w').close()\nserve(lambda request: [request, expected], prepare)\n"
    (tmp_path / "child_of_a_test.py").write_text(source)
    start_ahead("child_of_a_test")
    expect_ahead("child_of_a_test", str(begun))
    until(begun.exists)
    assert run_child("child_of_a_test", "another") == ["another", [str(begun)]]


def test_a_child_that_has_ended_before_it_was_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it was expected to prepare: the failure shows at the request."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))
    (tmp_path / "child_of_a_test.py").write_text("raise SystemExit('no library')\n")
    before = _children()
    start_ahead("child_of_a_test")
    (ahead,) = _children() - before
    os.waitid(os.P_PID, ahead, os.WEXITED | os.WNOWAIT)
    expect_ahead("child_of_a_test", {})
    with pytest.raises(errors.KernelError, match="no library"):
        run_child("child_of_a_test", {})


def test_a_child_that_was_not_needed_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would keep its imports in memory as long as the daemon runs."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))
    (tmp_path / "child_of_a_test.py").write_text(f"{SERVE}serve(lambda request: None)\n")
    before = _children()
    start_ahead("child_of_a_test")
    (ahead,) = _children() - before
    end_ahead()
    assert ahead not in _children()


def _children() -> set[int]:
    """The pids of the children of this thread."""
    return set(map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()))
