"""Where tools rank the functions that hold memory.

Each function returns the rank of the first of `leaks` in a tool's list, from 1, or None if the list has none.
"""

from __future__ import annotations

import re
import subprocess
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from bench.peers import NotHere
from bpfleakd.model.report import LeakReport

_INTERPRETER = "**/heaptrack/libexec/heaptrack_interpret"
_TIMEOUT_S = 120


def place_in_report(report: LeakReport, leaks: Sequence[str]) -> int | None:
    """In the order of `bpfleakctl top`."""
    return _place(([frame.function or "" for frame in site.stack] for site in report.sites), leaks)


def place_in_memleak(output: str, leaks: Sequence[str]) -> int | None:
    """In its last report, most outstanding bytes first (memleak prints these last)."""
    _before, _heading, report = output.rpartition("stacks with outstanding allocations:")
    stacks = re.split(r"^\t\d+ bytes in \d+ allocations from stack$", report, flags=re.MULTILINE)[1:]
    return _place((stack.splitlines() for stack in reversed(stacks)), leaks)


def place_in_heaptrack(directory: Path, leaks: Sequence[str]) -> int | None:
    """By bytes not freed at the end, in the file that launchers.heaptrack makes heaptrack write."""
    (interpreter, *_) = [*Path("/usr/lib").glob(_INTERPRETER), None]
    if interpreter is None:
        raise NotHere("heaptrack_interpret is not installed: apt install heaptrack")
    interpreted, stacks = directory / "heaptrack.interpreted", directory / "heaptrack.stacks"
    with (directory / "heaptrack.raw").open("rb") as raw, interpreted.open("wb") as output:
        subprocess.run(
            [interpreter], stdin=raw, stdout=output, stderr=subprocess.DEVNULL, check=True, timeout=_TIMEOUT_S
        )
    command = ["heaptrack_print", "--flamegraph-cost-type", "leaked", "-F", stacks, interpreted]
    subprocess.run(command, capture_output=True, check=True, timeout=_TIMEOUT_S)
    leaked_bytes: Counter[str] = Counter()
    for line in stacks.read_text(errors="replace").splitlines():
        stack, _space, leaked = line.rpartition(" ")
        leaked_bytes[stack] += int(leaked)
    return _place((stack.split(";") for stack, _bytes in leaked_bytes.most_common()), leaks)


def place_in_valgrind(directory: Path, leaks: Sequence[str]) -> int | None:
    """By bytes, of the leaks of all kinds."""
    found = []
    for path in directory.glob("valgrind.*.xml"):
        for error in ElementTree.parse(path).iter("error"):
            leaked = error.findtext("xwhat/leakedbytes")
            stack = error.find("stack")
            if leaked and stack is not None:
                found.append((int(leaked), [frame.findtext("fn") or "" for frame in stack]))
    found.sort(key=lambda leak: -leak[0])
    return _place((functions for _bytes, functions in found), leaks)


def _place(stacks: Iterable[Sequence[str]], leaks: Sequence[str]) -> int | None:
    for place, stack in enumerate(stacks, start=1):
        if any(leak in name for leak in leaks for name in stack):
            return place
    return None
