"""Programs for .NET Core 3.1, the one of the PyPI package dotnetcore2."""

from __future__ import annotations

import shutil
from pathlib import Path

from .building import build_directory
from .machine import cannot_run
from .workloads import BUILD

__all__ = ["dotnet_command"]

_DOTNET = BUILD.parent / "dotnetcore2" / "dotnetcore2" / "bin" / "dotnet"
_SETTINGS = ("COMPlus_PerfMapEnabled=1", "DOTNET_SYSTEM_GLOBALIZATION_INVARIANT=1")


def dotnet_command(program: str, library: str) -> list[str | Path]:
    """Return what runs `program`.dll of tests/workloads/runtimes, with a perf map from the start."""
    if not _DOTNET.exists():
        cannot_run(
            f"no {_DOTNET}: make setup FOR=test, or pip install --target build/dotnetcore2 dotnetcore2"
        )
    if shutil.which("mcs") is None:
        cannot_run("mcs is not installed: apt install mono-mcs, or make setup FOR=test")
    directory = build_directory("runtimes", library, f"{program}.dll")
    return ["env", *_SETTINGS, _DOTNET, directory / f"{program}.dll"]
