"""The options that a Node.js process was started with: those in NODE_OPTIONS, and those on its command line.

Options on the command line precede the program and override NODE_OPTIONS. Node accepts `_` for `-` in their
names. A process may overwrite both, so they may differ from the options in force.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

from bpfleakd.process.environment import read_environment
from bpfleakd.process.reading.reads import read_file

# The process controls this text, which is read within the tracing loop: the limit takes some milliseconds.
# Longer options in the environment are not read.
_COMMAND_LINE_MAX_BYTES = 64 << 10
_ENVIRONMENT_MAX_BYTES = 8 << 10
# Options whose value is the next word, unless it follows after `=`.
_WITH_VALUE = frozenset(
    {"-r", "--require", "--import", "--loader", "--experimental-loader", "-C", "--conditions", "--title"}
    | {"--inspect-port", "--debug-port"}
)
_OLD_SPACE_MIB = "--max-old-space-size"
# V8 cannot have more; a larger figure is meaningless.
_OLD_SPACE_MAX_MIB = 1 << 24

Option = tuple[str, str | None]


def read_options(pid: int, proc: Path = Path("/proc")) -> tuple[Option, ...]:
    """Names, with `-` for `_`, and values (None without one); later ones override earlier ones.

    Raises OSError if the process has ended.
    """
    line = read_file(pid, proc / str(pid) / "cmdline", _COMMAND_LINE_MAX_BYTES)
    # Each word ends with a NUL; the last one may be cut.
    words = line.decode(errors="replace").split("\0")[1:-1]
    return (*_options(_environment(pid, proc)), *_options(words))


def old_space_limit_bytes(options: Iterable[Option]) -> int | None:
    """The size of the old generation beyond which V8 ends the program, if an option sets it."""
    limit_mib = None
    for name, value in options:
        if name == _OLD_SPACE_MIB and value and value.isascii() and value.isdecimal():
            # At most 9 digits: int() takes quadratic time.
            limit_mib = int(value) if len(value) < 10 else None
    return limit_mib << 20 if limit_mib and limit_mib <= _OLD_SPACE_MAX_MIB else None


def _environment(pid: int, proc: Path) -> list[str]:
    """The words of NODE_OPTIONS."""
    value = read_environment(pid, proc).get(b"NODE_OPTIONS", b"")
    try:
        return shlex.split(value.decode(errors="replace")) if len(value) <= _ENVIRONMENT_MAX_BYTES else []
    except ValueError:
        return []


def _options(words: Iterable[str]) -> Iterator[Option]:
    """The options up to the name of the program."""
    rest = iter(words)
    for word in rest:
        if not word.startswith("-") or word in ("-", "--"):
            return
        name, equals, value = word.partition("=")
        name = name.replace("_", "-")
        if equals:
            yield name, value
        else:
            yield name, next(rest, None) if name in _WITH_VALUE else None
