"""What the daemon's side of the loader leaves behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import pytest

from bpfleakd import errors
from bpfleakd.kernel import loader
from bpfleakd.kernel.compilation.options import Capacities, LoadOptions
from bpfleakd.kernel.pins import PinnedSet


def test_a_failed_load_leaves_no_pins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the loader did not end in time, after it had pinned its first programs."""

    def pins_and_hangs(_module: str, request: dict[str, Any]) -> NoReturn:
        directory = Path(request["directory"])
        directory.mkdir()
        (directory / "heap_entry").touch()
        raise errors.KernelError("the loader did not end within 300 s")

    monkeypatch.setattr(loader, "run_child", pins_and_hangs)
    monkeypatch.setattr(loader, "check_release", lambda _release: None)
    with pytest.raises(errors.KernelError, match="did not end"):
        loader.load(PinnedSet.of(tmp_path, "version"), LoadOptions(Capacities(8, 64, 64, 64)))
    assert list(tmp_path.iterdir()) == []
