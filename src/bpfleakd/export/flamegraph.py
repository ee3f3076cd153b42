"""Flame graphs as a page with search and zoom.

The page contains d3-flame-graph, which draws it. Colours show the owner of a frame's code; in a comparison,
red has grown and blue has shrunk. flamegraph_picture.py draws the same without a script.
"""

from __future__ import annotations

from typing import Any

import msgspec

from bpfleakd.export.flame_tree import CodeKind, FlameNode, FlameTree, flame_tree
from bpfleakd.export.stack_values import StackValue
from bpfleakd.model.report import LeakReport
from bpfleakd.units import human_bytes
from bpfleakd.web import asset

COLOURS = {
    CodeKind.PROGRAM: "#f0a35e",
    CodeKind.LIBRARY: "#8ab4dc",
    CodeKind.JIT: "#8fcf92",
    CodeKind.ALLOCATOR: "#c4c4c4",
    CodeKind.UNKNOWN: "#d8b4dc",
    CodeKind.NONE: "#e6e2da",
}


def flamegraph_json(
    report: LeakReport, value: StackValue, baseline: LeakReport | None = None
) -> dict[str, Any]:
    """The tree in d3-flame-graph's format, and the texts of its page."""
    tree = flame_tree(report, value, baseline)
    return {
        "title": tree.root.name,
        "subtitle": subtitle(tree, value, baseline is not None),
        "unit": _unit(value),
        "differential": baseline is not None,
        "colours": {kind.value: colour for kind, colour in COLOURS.items()},
        "tree": _as_json(tree.root),
    }


def flamegraph_html(report: LeakReport, value: StackValue, baseline: LeakReport | None = None) -> str:
    """A self-contained page."""
    import html  # it has a table of all entities, 0.4 MB

    document = flamegraph_json(report, value, baseline)
    parts = {
        "TITLE": html.escape(document["title"]),
        "STYLE": asset("vendor/flamegraph.css") + asset("flamegraph.css"),
        "LIBRARY": asset("vendor/flamegraph.js"),
        "SCRIPT": asset("flamegraph.js"),
        # "</script>" in a name must not end the element.
        "DATA": msgspec.json.encode(document).decode().replace("<", "\\u003c"),
    }
    page = asset("flamegraph.html")
    pieces = page.split("@@")
    return "".join(parts[piece] if index % 2 else piece for index, piece in enumerate(pieces))


def _as_json(node: FlameNode) -> dict[str, Any]:
    return {
        "name": node.name,
        "value": node.width,
        "total": node.value,
        "delta": node.delta,
        "kind": node.kind.value,
        "place": node.place,
        "children": [_as_json(child) for child in node.children],
    }


def _unit(value: StackValue) -> str:
    if value is StackValue.GROWTH:
        return "B/s"
    return "blocks" if value in (StackValue.LIVE_COUNT, StackValue.ALLOCATED_COUNT) else "B"


def amount(number: int, value: StackValue) -> str:
    """A number of the shown figure, with its unit."""
    match _unit(value):
        case "blocks":
            return f"{number:,} blocks"
        case "B/s":
            return f"{human_bytes(number)}/s"
        case _:
            return human_bytes(number)


_WORDS = {
    StackValue.LIVE_BYTES: "live",
    StackValue.LIVE_COUNT: "live",
    StackValue.ALLOCATED_BYTES: "allocated",
    StackValue.ALLOCATED_COUNT: "allocated",
    StackValue.GROWTH: "growth",
}


def subtitle(tree: FlameTree, value: StackValue, is_compared: bool) -> str:
    """The sum of all frames, in words."""
    words = [f"{amount(tree.root.value, value)} {_WORDS[value]}"]
    if is_compared:
        words.append(f"{amount(tree.root.baseline, value)} before")
    if tree.left_out:
        words.append(f"{tree.left_out:,} narrower frames left out")
    return ", ".join(words)
