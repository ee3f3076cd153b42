"""A report against the truth: sums by function, and the comparison with a workload's ledger."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec

from bpfleakd.analysis.blame import blamed_frame
from bpfleakd.model.code.stack import Frame

FIGURES = ("live_bytes", "live_count", "allocated_bytes", "allocated_count")


def short_name(function: str | None) -> str | None:
    """The qualified name without parameters and return type: "void a::f<int>(long)" → "a::f<int>"."""
    if function is None:
        return None
    name = function.replace("(anonymous namespace)::", "").split("(", 1)[0]
    name = re.sub(r"\[abi:\w+\]", "", name)
    depth = 0
    for i in range(len(name) - 1, -1, -1):  # the last space outside of <> ends a return type
        depth += {">": 1, "<": -1}.get(name[i], 0)
        if name[i] == " " and depth == 0:
            return name[i + 1 :]
    return name


def by_function(report: dict[str, Any]) -> dict[str | None, dict[str, int]]:
    """The sums over the sites of each function that allocates, as a ledger has them."""
    sums: dict[str | None, dict[str, int]] = defaultdict(lambda: dict.fromkeys(FIGURES, 0))
    for site in report["sites"]:
        for figure in FIGURES:
            sums[allocating_function(site)][figure] += site[figure]
    return dict(sums)


def allocating_function(site: dict[str, Any]) -> str | None:
    """The innermost function outside of allocators: whom a site is charged to if no function is a wrapper.

    `function` may be further out, since what serves many callers of the workload is one.
    """
    if not site["stack"]:
        return short_name(site["function"])
    # Blocks of C functions that Python calls are charged to Python; a ledger has the C functions.
    frames = [frame for frame in site["stack"] if frame["kind"] != "interpreted"]
    frame = blamed_frame(msgspec.convert(frames, list[Frame], strict=False))
    return short_name(frame.function) if frame else None


def site_of(report: dict[str, Any], function: str) -> dict[str, Any]:
    """The largest site in which `function` allocates."""
    sites = [site for site in report["sites"] if allocating_function(site) == function]
    assert sites, f"nobody blames {function}, but {sorted(map(str, by_function(report)))}"
    return max(sites, key=lambda site: site["live_bytes"])


def expect_ledger(report: dict[str, Any], ledger: dict[str, Any]) -> None:
    """Fail unless the report equals the program's ledger: each function, and no others."""
    actual = by_function(report)
    expected = {name: dict(figures) for name, figures in ledger["sites"].items()}
    for name, figures in expected.items():
        for figure in FIGURES:
            if figures[figure] is None:  # the libc's own affair
                figures[figure] = actual.get(name, {}).get(figure)
    names = actual.keys() | expected.keys()
    differing = {n: (actual.get(n), expected.get(n)) for n in names if actual.get(n) != expected.get(n)}
    assert differing == {}, differing
    assert report["process"]["live_bytes"] == ledger["live_bytes"]
    assert report["process"]["live_count"] == ledger["live_count"]


def expect_no_losses(report: dict[str, Any]) -> None:
    """Fail if anything was missed."""
    missed = {reason: count for reason, count in report["losses"].items() if count}
    assert missed == {}, missed


def names(site: dict[str, Any]) -> list[str]:
    """The functions of a stack, innermost first; "?" for one without a name."""
    return [frame["function"] or "?" for frame in site["stack"]]


def expect_order(site: dict[str, Any], wanted: Sequence[str]) -> None:
    """Fail unless the names have frames in that order; others may lie between them."""
    functions = names(site)
    rest = iter(functions)
    missing = [name for name in wanted if not any(name in function for function in rest)]
    assert not missing, f"{missing} is not on the stack where it should be: {functions}"


def expect_whole(site: dict[str, Any], first_function: str) -> None:
    """Fail unless the stack reaches the thread's first function, and code in no file has names."""
    assert site["truncated"] is None
    # glibc 2.41 names clone3 with underscores.
    assert site["stack"][-1]["function"] in (first_function, f"__{first_function}")
    assert [frame for frame in site["stack"] if frame["function"] is None and frame["module"] is None] == []
