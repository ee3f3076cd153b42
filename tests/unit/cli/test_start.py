"""Ctrl-C before a command has begun."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

# Interrupts itself when a module is about to be imported.
PROGRAM = """
import os, signal, sys

command, module, *sys.argv[1:] = sys.argv[1:]

class Interrupt:
    def find_spec(self, name, *_):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
from bpfleakd.cli import start
sys.exit(getattr(start, command)())
"""


def run(*words: str, program: str = PROGRAM) -> subprocess.CompletedProcess:
    """Run a command; the first two words are its name and the module."""
    return subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize(
    ("command", "module", "code"),
    [
        ("bpfleakctl", "bpfleakd.cli.bpfleakctl", -signal.SIGINT),
        ("bpfleakctl", "bpfleakd.cli.commands.ps", 130),
        ("bpfleakd", "bpfleakd.cli.bpfleakd", -signal.SIGINT),
        ("bpfleakd", "bpfleakd.config", -signal.SIGINT),
    ],
)
def test_ctrl_c_while_modules_are_imported(command: str, module: str, code: int) -> None:
    """No traceback, and a shell sees 130: by the signal, or by the command's own exit code."""
    done = run(command, module, "ps")
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


def test_ctrl_c_while_the_daemon_restarts_its_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has to change the allocator (restart_with_malloc); an interpreter that starts prints a traceback."""
    interrupt = (
        "import os, signal\nif 'PYTHONMALLOC' in os.environ:\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
    )
    (tmp_path / "sitecustomize.py").write_text(interrupt)
    config = tmp_path / "config.yaml"
    config.write_text(f"bpffs_dir: {tmp_path}\nsocket: {tmp_path}/socket\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))
    monkeypatch.delenv("PYTHONMALLOC", raising=False)
    done = run("bpfleakd", "none", "--config", str(config))
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_an_ignored_ctrl_c_stays_ignored() -> None:
    """As for the background commands of a script."""
    ignored = PROGRAM.replace("sys.meta_path", "signal.signal(signal.SIGINT, signal.SIG_IGN)\nsys.meta_path")
    done = run("bpfleakctl", "bpfleakd.cli.bpfleakctl", "--version", program=ignored)
    assert (done.returncode, done.stderr) == (0, "")
