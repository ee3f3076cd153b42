"""Readable names from perf maps."""

from __future__ import annotations

import re

from bpfleakd.printable import printable, shortened

NAME_LIMIT_CHARACTERS = 512

# .NET Core writes the addresses of its type descriptions, which differ in every run.
_METHOD_TABLE = re.compile(r" /\* MT: 0x[0-9A-Fa-f]{1,16} \*/")


def jit_name(text: bytes) -> str:
    """The readable name of a method in a perf map, without addresses, of limited length."""
    name = _METHOD_TABLE.sub("", text.strip().decode(errors="surrogateescape"))
    return shortened(printable(name), NAME_LIMIT_CHARACTERS)
