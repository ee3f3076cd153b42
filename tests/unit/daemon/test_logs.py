"""Log lines: an event and pairs, and nothing in them that could steer a terminal."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest
import structlog

from bpfleakd.config import LogConfig, LogFormat, LogLevel
from bpfleakd.daemon.logs import configure_logging
from bpfleakd.errors import KernelError

from ..samples import HOSTILE


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def configured(stream: io.StringIO, level: str = "info", form: str = "auto", **environ: str) -> None:
    configure_logging(
        LogConfig(level=LogLevel(level), format=LogFormat(form)), stream=stream, environ=environ
    )


def test_without_a_terminal_a_line_is_a_json_object():
    """For the journal and log shippers."""
    stream = io.StringIO()
    configured(stream)
    structlog.get_logger().info("process.attached", pid=4711, functions=9, path=Path("/x"))
    line = json.loads(stream.getvalue())
    timestamp = line.pop("timestamp")
    assert timestamp.endswith("Z")
    assert line == {"event": "process.attached", "level": "info", "pid": 4711, "functions": 9, "path": "/x"}


def test_on_a_terminal_it_is_pretty():
    """Event and pairs on a line, in colours."""
    stream = Terminal()
    configured(stream, TERM="xterm")
    structlog.get_logger().info("process.attached", pid=4711)
    assert "process.attached" in stream.getvalue()
    assert "\x1b[" in stream.getvalue()


@pytest.mark.parametrize("environ", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_colours_can_be_refused(environ):
    """By NO_COLOR, and by a terminal that has none."""
    stream = Terminal()
    configured(stream, **environ)
    structlog.get_logger().info("process.attached", pid=4711)
    assert "\x1b" not in stream.getvalue()


@pytest.mark.parametrize("form", ["pretty", "json"])
def test_hostile_names_are_made_harmless(form):
    """Wherever they hide: in a value, a list, a mapping, an error, the event, or a traceback."""
    stream = io.StringIO()
    configured(stream, form=form)
    try:
        raise KernelError(HOSTILE)
    except KernelError as error:
        structlog.get_logger().exception(
            HOSTILE, a=HOSTILE, b=[HOSTILE, (HOSTILE,)], c={HOSTILE: HOSTILE}, d=error
        )
    assert all(line.isprintable() for line in stream.getvalue().split("\n"))
    # A line break in a name starts no line that looks like a message.
    assert all(line.startswith("  ") for line in stream.getvalue().rstrip("\n").split("\n")[1:])


def test_an_error_is_logged_with_its_words():
    """Not with the repr of the exception."""
    stream = io.StringIO()
    configured(stream)
    structlog.get_logger().error("x", error=KernelError("the fact", "the way out"))
    assert json.loads(stream.getvalue())["error"] == "the fact (the way out)"


def test_the_level_holds_and_can_be_changed():
    """For loggers that exist, too: SIGHUP may change it."""
    stream = io.StringIO()
    log = structlog.get_logger()
    configured(stream, level="warning")
    log.info("no")
    configured(stream, level="debug")
    log.debug("yes")
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["yes"]


def test_libraries_speak_through_the_same_lines():
    """Warnings of libraries are shown, their small talk is not."""
    stream = io.StringIO()
    configured(stream)
    logging.getLogger("pyroute2").info("Started server process")
    logging.getLogger("pyroute2").warning("Invalid HTTP request %s", HOSTILE)
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        logging.getLogger("asyncio").exception("Task failed")
    warning, error = (json.loads(line) for line in stream.getvalue().splitlines())
    assert (warning["level"], warning["library"]) == ("warning", "pyroute2")
    assert warning["message"].startswith("Invalid HTTP request [red]\\x1b")
    assert "ValueError" in error["exception"]


def test_the_daemon_does_not_load_what_it_does_not_need():
    """structlog would load rich for tracebacks, asyncio ssl: megabytes of a daemon that must stay small."""
    script = (
        "import sys, bpfleakd.daemon.loading, bpfleakd.daemon.daemon;"
        "heavy = {'rich.console', 'ssl', '_hashlib', 'http.client', 'email', 'html', 'xml'};"
        "print(sorted(heavy & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_closed_pipe_ends_nothing():
    """When the reader of the log exits, the program continues, and exits as usual."""
    code = (
        "import structlog\n"
        "from bpfleakd.config import LogConfig\n"
        "from bpfleakd.daemon.logs import configure_logging\n"
        "configure_logging(LogConfig())\n"
        "input()\n"
        "for number in range(10_000): structlog.get_logger().info('event', number=number)\n"
        "print('whole')\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        process.stderr.close()
        process.stdin.write("\n")
        process.stdin.close()
        assert process.stdout.read() == "whole\n"
    assert process.returncode == 0
