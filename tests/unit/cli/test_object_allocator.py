"""Where a real interpreter allocates its objects."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import os, sys
from bpfleakd.cli.bpfleakd import restart_with_malloc
restart_with_malloc()
print(os.getpid(), sys.argv[1:], "PYTHONMALLOC" in os.environ)
sys._debugmallocstats()
"""


@pytest.mark.parametrize(
    ("options", "chosen", "has_arenas"),
    [([], None, False), ([], "pymalloc", True), ([], "malloc", False), (["-E"], None, True)],
)
def test_objects_are_in_the_c_heap(options: list[str], chosen: str | None, has_arenas: bool) -> None:
    """It stays the same process with the same arguments; a choice of the user's is respected."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONMALLOC"}
    if chosen is not None:
        environment["PYTHONMALLOC"] = chosen
    with subprocess.Popen(
        [sys.executable, *options, "-c", PROGRAM, "a b", "--x"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        said, stats = program.communicate(timeout=60)
    assert said == f"{program.pid} ['a b', '--x'] False\n", stats
    assert ("arenas" in stats) == has_arenas
