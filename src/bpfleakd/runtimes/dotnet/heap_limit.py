"""The heap limit set at the start of a .NET process."""

from __future__ import annotations

import re
from collections.abc import Mapping

_NAME = b"GCHeapHardLimit"
# Since .NET 5, which still accepts the older one.
_PREFIXES, _OLDER_PREFIXES = (b"DOTNET_", b"COMPlus_"), (b"COMPlus_",)
_HEXADECIMAL = re.compile(rb"(?:0[xX])?([0-9a-fA-F]{1,16})")


def hard_limit_bytes(environment: Mapping[bytes, bytes], version: str) -> int | None:
    """The size in bytes beyond which the runtime refuses memory, if a variable sets it.

    `version` is the runtime's, "" if unknown. The process may have written over its environment.
    """
    major = version.partition(".")[0]
    is_older = major.isdecimal() and int(major) < 5
    for prefix in _OLDER_PREFIXES if is_older else _PREFIXES:
        found = _HEXADECIMAL.fullmatch(environment.get(prefix + _NAME, b""))
        if found:
            return int(found[1], 16) or None
    return None
