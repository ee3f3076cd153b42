"""The address of a Node.js process' inspector: 127.0.0.1:9229, or that of its options.

The options are `--inspect-port=HOST:PORT`, `--inspect=…`, and others with the same values. The real address
shows only when the inspector is open.
"""

from __future__ import annotations

import re
from ipaddress import ip_address
from pathlib import Path

from bpfleakd.process.listeners import Listener
from bpfleakd.runtimes.v8.node_options import read_options

_HOST, _PORT = "127.0.0.1", 9229
_OPTION = re.compile(r"--(?:inspect(?:-brk|-wait|-port)?|debug-port)")
_ADDRESS = re.compile(r"(?:(.*):)?(\d{1,5})|(.+)")


class UnknownAddress(Exception):
    """The address cannot be determined. The message is the end of a sentence."""


def inspector_address(pid: int, proc: Path) -> Listener:
    """The inspector's address. Raises UnknownAddress, or OSError if the process has ended."""
    host, port = _HOST, _PORT
    for name, value in read_options(pid, proc):
        if not value or not _OPTION.fullmatch(name):
            continue
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
