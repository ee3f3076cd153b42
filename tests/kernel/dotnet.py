"""Programs for .NET Core 3.1, the one of the PyPI package dotnetcore2."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from .building import build_directory
from .daemons import Daemon
from .machine import cannot_run
from .truth import allocating_function
from .waiting import PATIENCE, wait_until
from .workloads import BUILD

_DOTNET = BUILD.parent / "dotnetcore2" / "dotnetcore2" / "bin" / "dotnet"
# No ICU is needed by the programs here.
_SETTINGS = ("DOTNET_SYSTEM_GLOBALIZATION_INVARIANT=1",)
_PERF_MAP = ("COMPlus_PerfMapEnabled=1",)


def dotnet_command(program: str, library: str, *, perf_map: bool = False) -> list[str | Path]:
    """Return what runs `program`.dll of tests/workloads/runtimes, as a user would: without any flag.

    `perf_map`: with a perf map from the start.
    """
    if not _DOTNET.exists():
        cannot_run(
            f"no {_DOTNET}: make setup FOR=test, or pip install --target build/dotnetcore2 dotnetcore2"
        )
    if shutil.which("mcs") is None:
        cannot_run("mcs is not installed: apt install mono-mcs, or make setup FOR=test")
    directory = build_directory("runtimes", library, f"{program}.dll")
    settings = (*_SETTINGS, *_PERF_MAP) if perf_map else _SETTINGS
    return ["env", *settings, _DOTNET, directory / f"{program}.dll"]


def named_top(tracer: Daemon, pid: int, function: str) -> dict[str, Any]:
    """The report of a process, after all that has happened until now, once a site has this `function`.

    Methods get their names when the process is some seconds old, and those compiled later after a while.
    """
    tracer.top_after_tick(pid)

    def is_named() -> bool:
        sites = [site for site in tracer.top(pid)["sites"] if allocating_function(site) == function]
        managed = [frame for site in sites for frame in site["stack"] if frame["kind"] in ("jit", "unknown")]
        return bool(sites) and all(frame["function"] for frame in managed)

    wait_until(is_named, 45 * PATIENCE)
    return tracer.top(pid)
