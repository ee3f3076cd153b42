"""The daemon's command line, without the daemon."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from bpfleakd import errors
from bpfleakd.cli import bpfleakd
from bpfleakd.config import Config


@pytest.fixture
def started(monkeypatch):
    """Replace bpfleakd.daemon.daemon; return its arguments."""
    calls: list[tuple[Config, Callable[[], Config]]] = []

    def run(config: Config, reload: Callable[[], Config], *, keep_on_stop: bool) -> int:
        calls.append((config, reload))
        return 23

    daemon = SimpleNamespace(run=run)
    monkeypatch.setitem(sys.modules, "bpfleakd.daemon.daemon", daemon)
    monkeypatch.setattr("bpfleakd.daemon.daemon", daemon, raising=False)
    monkeypatch.setattr(bpfleakd, "start_ahead", lambda _module: None)
    monkeypatch.delenv("BPFLEAKD_SOCKET", raising=False)
    return calls


@pytest.fixture
def config_path(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text("policy: {rules: [{match: {pid: 7}, mode: watch}]}\nsocket: /run/from-file.sock\n")
    return path


CONTRADICTIONS = [
    ["--unless-restarting", "x.service"],
    ["--cleanup", "--pid", "7"],
    ["--cleanup", "--keep-on-stop"],
    ["--cleanup", "--check-config"],
    ["--check-config", "--pid", "7"],
]


def rules_of(config: Config) -> list[tuple[int, str]]:
    """The pid and mode of each rule."""
    return [(rule.match.pid, rule.mode) for rule in config.policy.rules]


def test_the_daemon_is_run_with_the_configuration(started, config_path):
    """Its exit code is the command's."""
    assert bpfleakd.main(["--config", str(config_path)]) == 23
    ((config, _),) = started
    assert (rules_of(config), config.socket) == ([(7, "watch")], Path("/run/from-file.sock"))


def test_a_reload_reads_the_file_again_and_keeps_the_command_line(started, config_path):
    """Options of the command line still apply after a SIGHUP."""
    bpfleakd.main(["--config", str(config_path), "--pid", "101", "--socket", "/tmp/a.sock"])
    ((_, reload),) = started
    config_path.write_text("tick_s: 2.0\n")
    config = reload()
    assert (rules_of(config), config.socket) == ([(101, "exact")], Path("/tmp/a.sock"))
    assert config.tick_s == 2.0


def test_the_command_line_goes_before_the_file(started, config_path):
    """Pids become rules before all others, the socket is replaced."""
    bpfleakd.main(
        ["--config", str(config_path), "--pid", "101", "7", "--pid", "23", "--socket", "/tmp/a.sock"]
    )
    ((config, _),) = started
    assert rules_of(config) == [(101, "exact"), (7, "exact"), (23, "exact"), (7, "watch")]
    assert config.socket == Path("/tmp/a.sock")


def test_the_environment_goes_before_the_file_and_after_the_option(started, config_path, monkeypatch):
    """BPFLEAKD_SOCKET, as for bpfleakctl; a relative path is relative to the current directory."""
    monkeypatch.setenv("BPFLEAKD_SOCKET", "x.sock")
    bpfleakd.main(["--config", str(config_path)])
    bpfleakd.main(["--config", str(config_path), "--socket", "/tmp/a.sock"])
    assert [config.socket for config, _ in started] == [Path.cwd() / "x.sock", Path("/tmp/a.sock")]


def test_check_config_starts_nothing(started, config_path, capsys):
    """It says that the file is right."""
    assert bpfleakd.main(["--config", str(config_path), "--check-config"]) == 0
    assert started == []
    assert capsys.readouterr().out == f"{config_path}: ok\n"


def test_a_wrong_configuration_ends_with_2(started, config_path, capsys):
    """With path, line, key and the way out on standard error."""
    config_path.write_text("log: {}\nsokcet: /x\n")
    assert bpfleakd.main(["--config", str(config_path), "--check-config"]) == 2
    assert capsys.readouterr() == (
        "",
        f"bpfleakd: {config_path}:2: sokcet: unknown key\n  hint: did you mean socket?\n",
    )
    assert started == []


def test_an_error_of_the_daemon_ends_with_its_exit_code(monkeypatch, config_path, capsys):
    """The one try of the command."""

    def run(*_: object, keep_on_stop: bool) -> int:
        raise errors.AccessDenied("the fact", "the way out")

    monkeypatch.setitem(sys.modules, "bpfleakd.daemon.daemon", SimpleNamespace(run=run))
    monkeypatch.setattr("bpfleakd.daemon.daemon", SimpleNamespace(run=run), raising=False)
    assert bpfleakd.main(["--config", str(config_path)]) == 4
    assert capsys.readouterr().err == "bpfleakd: the fact\n  hint: the way out\n"


@pytest.mark.parametrize(
    "arguments", [["--pid"], ["--pid", "x"], ["--pid", "0"], ["--nope"], ["word"], *CONTRADICTIONS]
)
def test_a_wrong_command_line_ends_with_2(arguments, capsys):
    """As with every other command."""
    with pytest.raises(SystemExit) as caught:
        bpfleakd.main(arguments)
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith("usage: bpfleakd")


def test_the_version_is_printed(capsys):
    """For bug reports."""
    with pytest.raises(SystemExit) as caught:
        bpfleakd.main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("bpfleakd 0.")
