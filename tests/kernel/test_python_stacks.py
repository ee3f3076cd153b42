"""Thousands of Python stacks equal the program's own from sys._getframe: make verify-python-stacks.
Interpreters of other Debian suites run in the root that scripts/unpack-pythons makes of their packages.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from .daemons import Daemon
from .python_paths import INTERPRETERS, PROGRAMS, compared, running

_COUNT = int(os.environ.get("VERIFY_PYTHON_STACKS", "0"))
_EQUAL_MIN = 0.995
_ROOTS = Path(__file__).parents[2] / "build" / "pythons"
_UNPACKED = sorted(_ROOTS.glob("*/usr/bin/python3.*[0-9]"))

pytestmark = pytest.mark.skipif(not _COUNT, reason="VERIFY_PYTHON_STACKS is not set")


@pytest.mark.parametrize("interpreter", [*INTERPRETERS, *map(str, _UNPACKED)])
def test_stacks_are_the_programs_own(daemon: Callable[..., Daemon], interpreter: str) -> None:
    """Nearly all are equal in every function and line, and none has a wrong one."""
    with running(*_command(Path(interpreter)), str(_COUNT), "7", "keep-code") as program:
        tracer = daemon()
        tracer.attach_with_tables(program.pid)
        program.allocate()
        result = compared(tracer, program)
        print(
            f"{interpreter}: {result.equal:,} of {_COUNT:,} stacks are equal,"
            f" {result.incomplete} lack frames, {len(result.wrong)} are wrong, {result.missing} missing"
        )
        assert result.wrong == []
        assert result.equal >= _EQUAL_MIN * _COUNT


def test_pypy_is_said_to_be_unsupported(daemon: Callable[..., Daemon]) -> None:
    """It is recognised, and traced on as a native program: no frame of another interpreter is invented."""
    with running(*_command(_ROOTS / "pypy/usr/bin/pypy3"), "200", "7", "keep-code") as program:
        tracer = daemon()
        tracer.attach_with_tables(program.pid)
        program.allocate()
        report = tracer.top_after_tick(program.pid)
    assert any("PyPy is not supported" in note for note in report["process"]["notes"])
    assert report["process"]["live_count"] > 0
    assert not any(frame["kind"] == "interpreted" for site in report["sites"] for frame in site["stack"])


def _command(interpreter: Path) -> list[str]:
    program = PROGRAMS / "paths.py"
    if _ROOTS not in interpreter.parents:
        return [str(interpreter), str(program)]
    root = _ROOTS / interpreter.relative_to(_ROOTS).parts[0]
    shutil.copy(program, root)
    return ["chroot", str(root), f"/{interpreter.relative_to(root)}", f"/{program.name}"]
