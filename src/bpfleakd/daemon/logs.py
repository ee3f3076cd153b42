"""Logging: an event and pairs, on standard error; pretty on a terminal, a JSON object a line otherwise.

Every text in a message is made printable, since most come from the traced programs: a process may be
called ESC]0;… or "x\\nroot logged in".

Processes that use it import lean_imports first.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, TextIO, cast

import structlog

from bpfleakd.printable import printable

if TYPE_CHECKING:
    from bpfleakd.config import LogConfig


def configure_logging(
    options: LogConfig, *, stream: TextIO | None = None, environ: Mapping[str, str] = os.environ
) -> None:
    """Set up structlog, and the standard library's logging for messages of libraries.

    May be called again with other options (on SIGHUP): existing loggers follow.
    """
    stream = stream or sys.stderr
    lasting = _LastingStream(stream)
    pretty = stream.isatty() if options.format == "auto" else options.format == "pretty"
    colors = pretty and stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
    level = logging.getLevelNamesMapping()[options.level.upper()]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,
            _make_printable,
            structlog.processors.TimeStamper(fmt="%H:%M:%S" if pretty else "iso", utc=not pretty),
            _pretty_renderer(colors) if pretty else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(cast("TextIO", lasting)),
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    root.handlers = [_LibraryHandler()]
    # The "info" of libraries is "debug" here.
    root.setLevel(logging.INFO if level <= logging.DEBUG else max(level, logging.WARNING))


def _pretty_renderer(colors: bool) -> structlog.dev.ConsoleRenderer:
    return structlog.dev.ConsoleRenderer(
        colors=colors, exception_formatter=structlog.dev.plain_traceback, sort_keys=False
    )


class _LibraryHandler(logging.Handler):
    """Passes records of the standard library's logging to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        pairs = {"exc_info": record.exc_info} if record.exc_info else {}
        log = structlog.get_logger()
        log.log(record.levelno, "library", library=record.name, message=record.getMessage(), **pairs)


class _LastingStream:
    """A stream that may fail: a lost log is no reason to stop tracing, or to leave pins behind.

    A pipe without a reader is replaced by /dev/null, for children too; a full disk is tried again.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            self._replace_if_gone(error)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._replace_if_gone(error)

    def _replace_if_gone(self, error: OSError) -> None:
        # EIO: the terminal was closed.
        if error.errno not in (errno.EPIPE, errno.EIO):
            return
        null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        os.dup2(null, self._stream.fileno())
        os.close(null)


def _make_printable(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> dict[str, Any]:
    return {key: _traceback(value) if key == "exception" else _value(value) for key, value in event.items()}


def _traceback(text: str) -> str:
    """Keep the lines, but indent them: an error message with a line break must not look like a log line."""
    return "\n".join("  " + printable(line) for line in text.split("\n"))


def _value(value: Any) -> Any:
    if isinstance(value, (str, PurePath, BaseException)):
        return printable(str(value))
    if isinstance(value, Mapping):
        return {_value(key): _value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_value(item) for item in value]
    return value
