"""A traced process by its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from bpfleakd import errors
from bpfleakd.api.client import DaemonClient
from bpfleakd.cli import bpfleakctl
from bpfleakd.cli.named_process import pid_of_name
from bpfleakd.model.process import ProcessState

from ..api.serving import FakeService, running
from ..samples import a_process, a_report, a_traced_process

ROWS = (
    a_traced_process(process=a_process(23, comm="shop", exe="/opt/bin/order_service")),
    a_traced_process(process=a_process(29, comm="worker", exe="/usr/bin/python3.11")),
    a_traced_process(process=a_process(31, comm="worker", exe="/usr/bin/python3.11")),
    a_traced_process(process=a_process(7, comm="shop", state=ProcessState.EXITED)),
    a_traced_process(process=a_process(11, comm="batch", state=ProcessState.EXITED)),
    a_traced_process(process=a_process(13, comm="batch", state=ProcessState.DETACHED)),
)


@pytest.mark.parametrize(("name", "pid"), [("shop", 23), ("order_service", 23), ("batch", 13)])
def test_one_of_a_name(tmp_path: Path, name: str, pid: int) -> None:
    """By its short or its program's name; of those that ended the last, if none is traced."""
    with running(FakeService(processes=ROWS), tmp_path / "socket"):
        assert pid_of_name(DaemonClient(tmp_path / "socket"), name) == pid


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [("worker", errors.TargetError, "29, 31"), ("sho", errors.NotAttached, "no traced process is called")],
)
def test_none_or_several(tmp_path: Path, name: str, kind: type[Exception], words: str) -> None:
    """Nothing is guessed."""
    with running(FakeService(processes=ROWS), tmp_path / "socket"), pytest.raises(kind, match=words):
        pid_of_name(DaemonClient(tmp_path / "socket"), name)


def test_a_command_takes_a_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And asks for the process that has it."""
    service = FakeService(processes=ROWS, report=a_report())
    with running(service, tmp_path / "socket"):
        assert bpfleakctl.main(["--socket", str(tmp_path / "socket"), "top", "shop", "--json"]) == 0
        assert bpfleakctl.main(["--socket", str(tmp_path / "socket"), "top", "nobody"]) == 5
    assert [call[:2] for call in service.calls if call[0] == "report"] == [("report", 23)]
    assert "no traced process is called 'nobody'" in capsys.readouterr().err
