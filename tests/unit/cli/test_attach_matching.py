"""`attach` to all that match, and `attach --wait`: output, errors, exit codes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from bpfleakd import errors
from bpfleakd.cli import bpfleakctl
from bpfleakd.cli.awaited_verdicts import EXIT_CODES
from bpfleakd.model.process import ProcessSelection, ProcessState
from bpfleakd.model.verdict import Verdict

from ..api.serving import FakeService, running
from ..samples import a_process, a_process_verdict, a_report, a_traced_process


@pytest.fixture
def ctl(tmp_path: Path, capsys, monkeypatch):
    """Run bpfleakctl against a service; return exit code, standard output and standard error."""
    for name in ("BPFLEAKD_SOCKET", "COLUMNS", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)

    def run(service: FakeService, *arguments: str) -> tuple[int, str, str]:
        path = tmp_path / "x.sock"
        with capture_logs(), running(service, path):
            capsys.readouterr()
            code = bpfleakctl.main(["--socket", str(path), *arguments])
            return code, *capsys.readouterr()

    return run


def a_service(verdicts: dict[int, Verdict | None], **answers) -> FakeService:
    """A daemon that attaches to processes that have ended, with these verdicts."""
    rows = {
        pid: replace(a_traced_process(pid), process=a_process(pid, state=ProcessState.EXITED))
        for pid in verdicts
    }

    def report(pid: int, **_options):
        verdict = verdicts[pid]
        return a_report(pid, process_verdict=verdict and a_process_verdict(verdict=verdict))

    given = {
        "matching": tuple(verdicts),
        "attach": lambda pid, _mode, **_options: rows[pid],
        "processes": tuple(rows.values()),
        "report": report,
    }
    return FakeService(**{**given, **answers})


def test_all_that_match_are_attached_to(ctl):
    """One line each; the options are the criteria."""
    service = a_service({23: None, 29: None})
    code, output, error = ctl(service, "attach", "sh*p", "--unit", "shop", "--container", "5d41")
    assert (code, error) == (0, "")
    assert [line.split()[2] for line in output.splitlines()] == ["23", "29"]
    # The server identifies the requesting process by its socket, and excludes it.
    assert service.calls[0] == ("matching", ProcessSelection("sh*p", "shop", "5d41"), os.getpid())
    assert [call[:2] for call in service.calls[1:]] == [("attach", 23), ("attach", 29)]


def test_one_that_cannot_be_attached_to_does_not_keep_the_others(ctl):
    """The exit code is that of the first error; those that are traced already are as they should be."""

    def attach(pid, _mode, **_options):
        failures = {23: errors.NoAllocator("no allocator"), 31: errors.AlreadyAttached("it is")}
        return failures.get(pid) or a_traced_process(pid)

    service = a_service({23: None, 29: None, 31: None}, attach=attach)
    code, output, error = ctl(service, "attach", "shop")
    assert (code, error) == (8, "bpfleakctl: 23: no allocator\n")
    assert output.startswith("attached to 29 ")


def test_nothing_that_matches_is_an_error(ctl):
    """With the criteria."""
    code, output, error = ctl(a_service({}), "attach", "--unit", "shop")
    assert (code, output) == (6, "")
    assert "no process matches unit 'shop'" in error


@pytest.mark.parametrize("verdict", list(Verdict))
def test_the_exit_code_is_the_verdict(ctl, verdict):
    """Printed with the call sites."""
    code, output, error = ctl(a_service({4711: verdict}), "attach", "4711", "--wait")
    assert (code, error) == (EXIT_CODES[verdict], "")
    assert output.startswith("attached to 4711 ")
    assert "leak_here" in output
    assert output.endswith(f"verdict: {verdict} (exit code {code})\n")


@pytest.mark.parametrize(
    ("verdicts", "worst"),
    [
        ((Verdict.STEADY, Verdict.LEAK, Verdict.GROWING), 20),
        ((Verdict.UNKNOWN, Verdict.GROWING), 21),
        ((None, Verdict.STEADY), 22),
    ],
)
def test_the_worst_verdict_counts(ctl, verdicts, worst):
    """JSON has it and all the reports, and nothing else is printed."""
    service = a_service(dict(enumerate(verdicts, 23)))
    code, output, _error = ctl(service, "attach", "shop", "--wait", "--json")
    found = json.loads(output)
    assert (code, found["exit_code"], EXIT_CODES[Verdict(found["verdict"])]) == (worst, worst, worst)
    assert [report["process"]["pid"] for report in found["reports"]] == [*range(23, 23 + len(verdicts))]


@pytest.mark.parametrize(("verdict", "code"), [(Verdict.LEAK, 20), (Verdict.GROWING, 8), (Verdict.STEADY, 8)])
def test_an_error_hides_no_leak(ctl, verdict, code):
    """But all other verdicts."""

    def attach(pid, _mode, **_options):
        return errors.NoAllocator("no allocator") if pid == 23 else a_traced_process(pid)

    service = a_service({23: None, 29: verdict}, attach=attach)
    assert ctl(service, "attach", "shop", "--wait")[0] == code


def test_a_process_that_is_attached_to_already_is_waited_for(ctl):
    """Its verdict is returned."""
    service = a_service({4711: Verdict.LEAK}, attach=errors.AlreadyAttached("it is"))
    assert ctl(service, "attach", "4711", "--wait")[0] == 20


def test_it_waits_for_the_requested_time(ctl):
    """While the process runs."""
    service = a_service({4711: Verdict.STEADY}, processes=(a_traced_process(4711),))
    assert ctl(service, "attach", "4711", "--wait", "--for", "0.6s")[0] == 0
    asked = [call[0] for call in service.calls]
    assert asked.count("processes") >= 2
    assert asked[-1] == "report"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--json", "1"], "--for and --json need --wait"),
        (["--for", "9s", "1"], "--for and --json need --wait"),
        (["1", "--unit", "shop"], "a pid names one process"),
        (["--wait"], "name the process"),
        (["shop", "--pid", "1"], "name one process"),
        ([""], "is neither a process ID nor a name"),
    ],
)
def test_mistakes(arguments, words, capsys):
    """Before any request to a daemon."""
    with pytest.raises(SystemExit) as ended:
        bpfleakctl.main(["--socket", "/nowhere", "attach", *arguments])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err
