"""Options of Node.js, on the command line and in the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from bpfleakd.runtimes.v8.node_options import old_space_limit_bytes, read_options
from tests.unit.runtimes.v8.node_processes import write_process


@pytest.mark.parametrize(
    ("words", "options", "limit_mib"),
    [
        (["app.js"], "", None),
        (["--max-old-space-size=90", "app.js"], "", 90),
        (["--max_old_space_size=91", "app.js"], "", 91),
        (["app.js", "--max-old-space-size=90"], "", None),
        (["app.js"], "--inspect --max-old-space-size=92", 92),
        (["--max-old-space-size=90", "--max-old-space-size=93", "app.js"], "--max-old-space-size=92", 93),
        (["-r", "--max-old-space-size=90", "app.js"], "", None),
        (["--max-old-space-size=0", "app.js"], "", None),
        (["--max-old-space-size", "app.js"], "", None),
        (["--max-old-space-size=-1", "app.js"], "", None),
        (["--max-old-space-size=\u0663", "app.js"], "", None),
        (["--max-old-space-size=" + "9" * 100_000, "app.js"], "", None),
        (["app.js"], "--max-old-space-size=92 " + "-a " * 3_000, None),
        # cut within the figure
        (["-" + "a" * (65_536 - 29), "--max-old-space-size=90", "app.js"], "", None),
        (["-a"] * 100_000 + ["--max-old-space-size=90", "app.js"], "", None),
        (["app.js"], "--title='unended --max-old-space-size=92", None),
    ],
)
def test_the_limit_of_the_heap(tmp_path: Path, words: list[str], options: str, limit_mib: int | None) -> None:
    """As Node takes it: before the program, the command line before NODE_OPTIONS, the last one in force."""
    write_process(tmp_path, words, options)
    limit_bytes = None if limit_mib is None else limit_mib << 20
    assert old_space_limit_bytes(read_options(1, tmp_path)) == limit_bytes


def test_a_process_that_has_ended(tmp_path: Path) -> None:
    """It has no options, and the error says so."""
    with pytest.raises(OSError, match="1/cmdline"):
        read_options(1, tmp_path)
