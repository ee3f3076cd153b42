"""Where a Node.js process opens its inspector: 127.0.0.1:9229, or as its options say.

Options are on the command line before the program, and in NODE_OPTIONS: `--inspect-port=HOST:PORT`,
`--inspect=…`, and others that take the same. What the process does in the end is seen when it is open.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from ipaddress import ip_address
from pathlib import Path

from bpfleakd.process.environment import read_environment
from bpfleakd.process.listeners import Listener

__all__ = ["UnknownAddress", "inspector_address"]

_HOST, _PORT = "127.0.0.1", 9229
_COMMAND_LINE_MAX_BYTES = 1 << 20
_OPTION = re.compile(r"--(?:inspect(?:-brk|-wait|-port)?|debug-port)(?:=(.*))?", re.DOTALL)
# Those whose value is the next word.
_WITH_VALUE = frozenset(
    {"-r", "--require", "--import", "--loader", "--experimental-loader", "-C", "--conditions", "--title"}
)
_SEPARATE_PORT = frozenset({"--inspect-port", "--debug-port"})
_ADDRESS = re.compile(r"(?:(.*):)?(\d{1,5})|(.+)")


class UnknownAddress(Exception):
    """It cannot be said where the inspector would be. The message is the end of a sentence."""


def inspector_address(pid: int, proc: Path) -> Listener:
    """The address that a process uses. Raises UnknownAddress, or OSError if it has ended."""
    with (proc / str(pid) / "cmdline").open("rb") as file:
        words = file.read(_COMMAND_LINE_MAX_BYTES).decode(errors="replace").split("\0")[1:]
    try:
        options = shlex.split(read_environment(pid, proc).get(b"NODE_OPTIONS", b"").decode(errors="replace"))
    except ValueError:
        options = []
    host, port = _HOST, _PORT
    for value in (*_values(options), *_values(words)):
        found = _ADDRESS.fullmatch(value)
        if found is None:
            continue
        host = (found[1] or found[3] or host).strip("[]")
        port = int(found[2]) if found[2] else port
    if port == 0:
        raise UnknownAddress("it was started with a random port for its inspector")
    try:
        ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError as error:
        raise UnknownAddress("it was started with a host name for its inspector") from error
    return Listener("127.0.0.1" if host == "localhost" else host, port, inode=0, is_own=True)


def _values(words: Iterable[str]) -> Iterator[str]:
    """The values of the options for the inspector, up to the name of the program."""
    rest = iter(words)
    for word in rest:
        if not word.startswith("-") or word in ("-", "--"):
            return
        if word in _WITH_VALUE:
            next(rest, None)
        elif word in _SEPARATE_PORT:
            yield next(rest, "")
        elif (found := _OPTION.fullmatch(word)) and found[1]:
            yield found[1]
