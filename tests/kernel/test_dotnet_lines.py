"""Lines of .NET methods, by portable PDBs that .NET's own library wrote."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .daemons import Daemon
from .dotnet import dotnet_command
from .waiting import PATIENCE, wait_until


@pytest.mark.long
def test_lines_by_portable_pdb(
    tracer: Daemon, service: Callable[..., subprocess.Popen], tmp_path: Path
) -> None:
    """Beside the assembly or in it; not by the PDB of another build."""
    *dotnet, writer = dotnet_command("PdbWriter", "libsessions.so")
    subprocess.run([*dotnet, writer, tmp_path], check=True, stdout=subprocess.DEVNULL)
    settings = Path(writer).with_suffix(".runtimeconfig.json")
    pids = {}
    for name in ("Beside", "Embedded", "Other"):
        shutil.copy(settings, tmp_path / f"{name}.runtimeconfig.json")
        pids[name] = service(*dotnet, tmp_path / f"{name}.dll").pid
    for pid in pids.values():
        tracer.attach(pid)

    def stack(name: str) -> list[tuple[str, str | None]]:
        """The program's own methods in the stack of what leaks, with their places."""
        sites: list[dict[str, Any]] = tracer.top(pids[name])["sites"]
        kept = [site["stack"] for site in sites if site["function"] == "Shop.Book.Keep"]
        own = [frame for frame in max(kept, key=len, default=[]) if frame["module"] == name]
        return [(frame["function"], frame["location"]) for frame in own]

    expected = [("Shop.Book.Keep", "Ledger.cs:12"), ("Shop.Book.Main", "Ledger.cs:43")]
    for name in ("Beside", "Embedded"):
        wait_until(lambda name=name: stack(name) == expected, 60 * PATIENCE)
    wait_until(lambda: stack("Other") == [(function, None) for function, _line in expected], 60 * PATIENCE)
