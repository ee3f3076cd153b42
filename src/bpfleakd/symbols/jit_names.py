"""Names of perf maps, fit to be shown."""

from __future__ import annotations

import re

from bpfleakd.printable import printable, shortened

__all__ = ["NAME_LIMIT_CHARACTERS", "jit_name"]

NAME_LIMIT_CHARACTERS = 512

# .NET Core writes where its type descriptions lie, in every run elsewhere.
_METHOD_TABLE = re.compile(r" /\* MT: 0x[0-9A-Fa-f]{1,16} \*/")


def jit_name(text: bytes) -> str:
    """Return what a perf map says a method is called, without addresses, of a length that can be shown."""
    name = _METHOD_TABLE.sub("", text.strip().decode(errors="surrogateescape"))
    return shortened(printable(name), NAME_LIMIT_CHARACTERS)
