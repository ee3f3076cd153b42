"""Parts of the names that .NET gives its methods in a perf map (analysis/managed_code.py has examples)."""

from __future__ import annotations

import re

__all__ = ["dotnet_assembly"]

# A type and a method come behind the assembly, and behind no bracket of an array or a generic type.
_DOTNET_ASSEMBLY = re.compile(r"(?:^| )\[([^\[\]/]{1,256})\] (?=[^()]*::)")


def dotnet_assembly(name: str) -> str | None:
    """The assembly of a .NET method; None for other names."""
    found = _DOTNET_ASSEMBLY.search(name)
    return found[1] if found else None
