"""A program whose file, command name and functions have names that attack the reader's terminal."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.request
from collections import Counter
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from .machine import need_tool
from .ports import free_port
from .waiting import wait_until
from .workloads import Workload, build

# Sets the window title, clears the screen, ends the line, closes quotes and braces, climbs directories,
# starts a C1 sequence, and is not valid UTF-8.
FUNCTION = b'leak\x1b]0;owned\x07\x1b[2J\n"} 1\n\\../../{}%s[red]\x9b1m\xff'
FILE = FUNCTION.replace(b"/", b"-")


@pytest.fixture
def hostile(tmp_path: Path):
    """`many_sites` under another name, its leaking function's changed in the symbol table."""
    file = tmp_path / os.fsdecode(FILE)
    need_tool("objcopy")
    # objcopy cannot open such a file itself.
    plain = tmp_path / "plain"
    rename = b"--redefine-sym=allocate_at_leaf=" + FUNCTION
    subprocess.run(["objcopy", "--strip-debug", rename, build("many_sites"), plain], check=True)
    shutil.move(plain, file)
    program = Workload([file, "1", "23", "101"])
    yield program
    program.kill()


def assert_harmless(text: str) -> None:
    """Nothing in it moves a cursor, and its lines are our own."""
    for line in text.split("\n"):
        assert line.isprintable(), line


@pytest.mark.parametrize("log_format", ["json", "pretty"])
def test_names_break_no_line_no_label_and_no_terminal(daemon, hostile, log_format):
    """They are shown with escapes in the log, in the metrics, on the terminal and in JSON."""
    port = free_port()
    tracer = daemon(metrics={"enabled": True, "port": port}, log={"format": log_format})
    tracer.attach(hostile.pid)
    hostile.step(23)
    report = tracer.top_after_tick(hostile.pid)

    assert max(report["sites"], key=lambda site: site["live_count"])["function"].startswith(
        r"leak\x1b]0;owned"
    )
    assert_harmless(json.dumps(report, ensure_ascii=False))
    for command in ("top", "report", "maps"):
        assert_harmless(
            tracer.control(command, "--pid", hostile.pid, *(["--once"] if command == "top" else []))
        )
    assert_harmless(tracer.control("ps"))

    def named_samples() -> list[tuple[str, frozenset[tuple[str, str]]]]:
        """The samples, once names have been found; until then frames have none."""
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            exposition = answer.read().decode()
        assert_harmless(exposition)
        samples = [
            (sample.name, frozenset(sample.labels.items()))
            for family in text_string_to_metric_families(exposition)
            for sample in family.samples
        ]
        functions = {dict(labels).get("function", "") for _, labels in samples}
        is_named = any(function.startswith(r"leak\x1b]0;owned") for function in functions)
        return samples if is_named else []

    samples = wait_until(named_samples)
    assert max(Counter(samples).values()) == 1

    tracer.detach(hostile.pid)
    log = tracer.log
    assert_harmless(log)
    if log_format == "json":
        commands = {json.loads(line).get("comm", "") for line in log.splitlines()}
        assert any(command.startswith(r"leak\x1b]0;owned") for command in commands)
    else:
        assert r"leak\x1b]0;owned" in log
