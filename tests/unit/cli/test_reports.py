"""`bpfleakctl reports` against a daemon that answers over a real socket."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bpfleakd import errors
from bpfleakd.cli import bpfleakctl
from bpfleakd.model.report import StoredReport, StoredReportEntry

from ..api.serving import FakeService, running
from ..samples import HOSTILE, a_report


def a_kept_report(**changes: Any) -> StoredReportEntry:
    values = {
        "id": 7,
        "kept_s": 1_700_000_000.0,
        "pid": 4_711,
        "start_ticks": 8_009,
        "comm": "shop",
        "exe": "/usr/bin/shop",
        "state": "exited",
        "live_bytes": 23 << 20,
        "live_count": 1_009,
        "growth_bytes_per_s": 101.0,
        "sites": 2,
    }
    return StoredReportEntry(**(values | changes))


@pytest.fixture
def reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run the command; return exit code, standard output and standard error."""

    def run(service: FakeService, *arguments: str) -> tuple[int, str, str]:
        with running(service, tmp_path / "socket"):
            capsys.readouterr()
            code = bpfleakctl.main(["--socket", str(tmp_path / "socket"), "reports", *arguments])
            return code, *capsys.readouterr()

    return run


def test_a_table(reports, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row a report; names that a terminal would obey are escaped."""
    monkeypatch.setenv("COLUMNS", "200")
    service = FakeService(reports=(a_kept_report(), a_kept_report(id=6, comm=HOSTILE)))
    code, out, _ = reports(service, "--pid", "4711", "--limit", "5")
    assert code == 0
    assert service.calls == [("reports", 4711, 5)]
    assert "23.0 MiB" in out
    assert "exited" in out
    assert "\x1b" not in out
    assert len(out.splitlines()) == 3


def test_nothing_kept(reports) -> None:
    """It says when one is."""
    code, out, _ = reports(FakeService(reports=()))
    assert (code, "no reports" in out) == (0, True)


def test_json(reports) -> None:
    """The list, and a report as `top` prints it."""
    saved = StoredReport(a_kept_report(), a_report())
    service = FakeService(reports=(saved.kept,), stored_report=saved)
    code, out, _ = reports(service, "--json")
    assert (code, json.loads(out)["reports"][0]["id"]) == (0, 7)
    code, out, _ = reports(service, "--show", "7", "--json")
    assert (code, json.loads(out).keys() >= {"process", "sites", "losses"}) == (0, True)


def test_one_report(reports) -> None:
    """With its stacks."""
    service = FakeService(stored_report=StoredReport(a_kept_report(), a_report()))
    code, out, _ = reports(service, "--show", "7")
    assert (code, "leak_here" in out) == (0, True)
    assert service.calls == [("stored_report", 7)]


def test_the_newest_of_a_process(reports) -> None:
    """Its number need not be looked up."""
    saved = StoredReport(a_kept_report(), a_report())
    service = FakeService(reports=(saved.kept,), stored_report=saved)
    assert reports(service, "4711", "--show")[0] == 0
    assert reports(service, "--show")[0] == 0
    assert service.calls == [
        ("reports", 4711, 1),
        ("stored_report", 7),
        ("reports", None, 1),
        ("stored_report", 7),
    ]
    code, _, err = reports(FakeService(reports=()), "4711", "--show")
    assert (code, "no report of process 4711" in err) == (errors.NoSuchReport.exit_code, True)


def test_a_name_takes_all_processes_that_have_it(reports) -> None:
    """Their short names, or those of their executables; also processes that ended long ago."""
    listed = (a_kept_report(), a_kept_report(id=6, comm="thread-1"), a_kept_report(id=5, comm="x", exe="/x"))
    service = FakeService(reports=listed, stored_report=StoredReport(listed[0], a_report()))
    code, out, _ = reports(service, "shop", "--json")
    assert (code, [entry["id"] for entry in json.loads(out)["reports"]]) == (0, [7, 6])
    code, out, _ = reports(service, "shop", "--json", "--limit", "1")
    assert [entry["id"] for entry in json.loads(out)["reports"]] == [7]
    assert reports(service, "shop", "--show")[0] == 0
    code, _, err = reports(service, "nginx", "--show")
    assert (code, "no report of process nginx" in err) == (errors.NoSuchReport.exit_code, True)


def test_a_report_of_the_named_process(reports) -> None:
    """The number of another one's report is a mistake."""
    service = FakeService(stored_report=StoredReport(a_kept_report(), a_report()))
    assert reports(service, "4711", "--show", "7")[0] == 0
    code, _, err = reports(service, "23", "--show", "7")
    assert (code, "report 7 is of process 4711, not 23" in err) == (errors.NoSuchReport.exit_code, True)


def test_one_that_is_gone(reports) -> None:
    """The daemon's error is ours."""
    service = FakeService(stored_report=errors.NoSuchReport("no report 9 is kept", "list them"))
    code, _, err = reports(service, "--show", "9")
    assert (code, "no report 9 is kept" in err) == (errors.NoSuchReport.exit_code, True)
