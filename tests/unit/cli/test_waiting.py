"""The line while a command takes its time."""

from __future__ import annotations

import subprocess
import sys

from .terminal import on_a_terminal

SCRIPT = """
import time
from bpfleakd.cli.waiting import waiting
with waiting("reading [red] the memory", after_s={after_s}):
    time.sleep({takes_s})
print("done")
"""


def test_a_slow_answer_shows_progress_and_removes_it():
    """With the time that it has taken; the cursor comes back."""
    with on_a_terminal([sys.executable, "-c", SCRIPT.format(after_s=0, takes_s=1.5)]) as terminal:
        terminal.until("reading [red] the memory")
        terminal.until("0:00:01")
        rest, code = terminal.end()
    assert code == 0
    assert "\x1b[2K" in rest
    assert "\x1b[?25h" in rest
    assert rest.rstrip().endswith("done")


def test_a_quick_answer_shows_no_progress():
    """A line that flickers does not help."""
    with on_a_terminal([sys.executable, "-c", SCRIPT.format(after_s=60, takes_s=0)]) as terminal:
        assert terminal.end() == ("done\r\n", 0)


def test_no_progress_without_a_terminal():
    """In a pipe."""
    command = [sys.executable, "-c", SCRIPT.format(after_s=0, takes_s=0.3)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("done\n", "")
