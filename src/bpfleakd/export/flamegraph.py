"""Flame graphs in one file: a page that can be searched and zoomed, or a plain picture.

The page is drawn by d3-flame-graph, which is inside it; the picture has no script. Colours say whose code a
frame is; in a comparison red is what grew and blue what shrank.
"""

from __future__ import annotations

import html
from typing import Any
from xml.etree import ElementTree

import msgspec

from bpfleakd.export.flame_tree import CodeKind, FlameNode, FlameTree, flame_tree
from bpfleakd.export.stack_values import StackValue
from bpfleakd.model.report import LeakReport
from bpfleakd.units import human_bytes
from bpfleakd.web import asset

__all__ = ["COLOURS", "flamegraph_html", "flamegraph_json", "flamegraph_svg"]

COLOURS = {
    CodeKind.PROGRAM: "#f0a35e",
    CodeKind.LIBRARY: "#8ab4dc",
    CodeKind.JIT: "#8fcf92",
    CodeKind.ALLOCATOR: "#c4c4c4",
    CodeKind.UNKNOWN: "#d8b4dc",
    CodeKind.NONE: "#e6e2da",
}

_SVG_WIDTH, _ROW_HEIGHT, _MARGIN, _CHARACTER_WIDTH = 1200.0, 18, 24, 6.6
_NARROWEST = 0.4


def flamegraph_json(
    report: LeakReport, value: StackValue, baseline: LeakReport | None = None
) -> dict[str, Any]:
    """Return the tree as d3-flame-graph takes it, and what its page says around it."""
    tree = flame_tree(report, value, baseline)
    return {
        "title": tree.root.name,
        "subtitle": _subtitle(tree, value, baseline is not None),
        "unit": _unit(value),
        "differential": baseline is not None,
        "colours": {kind.value: colour for kind, colour in COLOURS.items()},
        "tree": _as_json(tree.root),
    }


def flamegraph_html(report: LeakReport, value: StackValue, baseline: LeakReport | None = None) -> str:
    """Return a page that needs nothing but a browser."""
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


def flamegraph_svg(report: LeakReport, value: StackValue, baseline: LeakReport | None = None) -> str:
    """Return a picture: a title for each frame, which browsers show under the pointer."""
    tree = flame_tree(report, value, baseline)
    root = tree.root
    rows = _depth(root)
    height = rows * _ROW_HEIGHT + 2 * _MARGIN
    svg = ElementTree.Element(
        "svg",
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "width": f"{_SVG_WIDTH:g}",
            "height": f"{height}",
            "viewBox": f"0 0 {_SVG_WIDTH:g} {height}",
            "font-family": "ui-monospace, monospace",
            "font-size": "11",
        },
    )
    ElementTree.SubElement(svg, "rect", {"width": "100%", "height": "100%", "fill": "#ffffff"})
    heading = ElementTree.SubElement(svg, "text", {"x": "4", "y": f"{_MARGIN - 8}"})
    heading.text = f"{root.name}: {_subtitle(tree, value, baseline is not None)}"
    most = max((abs(child.delta) for child in root.children), default=0) if baseline else 0
    _draw(svg, root, 0.0, _SVG_WIDTH, height - _MARGIN, root.width, value, most)
    return ElementTree.tostring(svg, encoding="unicode") + "\n"


def _draw(
    svg: ElementTree.Element,
    node: FlameNode,
    x: float,
    width: float,
    bottom: int,
    total: int,
    value: StackValue,
    most: int,
) -> None:
    """A frame on its caller; `most` is the greatest change there is, 0 where nothing is compared."""
    if width < _NARROWEST:
        return
    group = ElementTree.SubElement(svg, "g")
    box = {
        "x": f"{x:.2f}",
        "y": f"{bottom - _ROW_HEIGHT}",
        "width": f"{width:.2f}",
        "height": f"{_ROW_HEIGHT - 1}",
    }
    ElementTree.SubElement(group, "rect", box | {"fill": _colour(node, most), "rx": "1"})
    title = ElementTree.SubElement(group, "title")
    title.text = "\n".join(
        part for part in (node.name, node.place, _figures(node, total, value, most)) if part
    )
    room = int((width - 6) / _CHARACTER_WIDTH)
    if room >= 3:
        text = ElementTree.SubElement(group, "text", {"x": f"{x + 3:.2f}", "y": f"{bottom - 5}"})
        text.text = node.name if len(node.name) <= room else node.name[: room - 1] + "…"
    for child in sorted(node.children, key=lambda child: child.name):
        share = width * child.width / max(node.width, 1)
        _draw(svg, child, x, share, bottom - _ROW_HEIGHT, total, value, most)
        x += share


def _colour(node: FlameNode, most: int) -> str:
    if not most:
        return COLOURS[node.kind]
    share = min(1.0, abs(node.delta) / most)
    faded = round(235 - 150 * share)
    return f"#f5{faded:02x}{faded:02x}" if node.delta > 0 else f"#{faded:02x}{faded:02x}f5"


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


def _depth(node: FlameNode) -> int:
    return 1 + max((_depth(child) for child in node.children), default=0)


def _unit(value: StackValue) -> str:
    if value is StackValue.GROWTH:
        return "B/s"
    return "blocks" if value in (StackValue.LIVE_COUNT, StackValue.ALLOCATED_COUNT) else "B"


def _amount(number: int, value: StackValue) -> str:
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


def _subtitle(tree: FlameTree, value: StackValue, is_compared: bool) -> str:
    words = [f"{_amount(tree.root.value, value)} {_WORDS[value]}"]
    if is_compared:
        words.append(f"{_amount(tree.root.baseline, value)} before")
    if tree.left_out:
        words.append(f"{tree.left_out:,} narrower frames left out")
    return ", ".join(words)


def _figures(node: FlameNode, total: int, value: StackValue, most: int) -> str:
    share = f"{100 * node.value / total:.1f} %" if total else ""
    if not most:
        return f"{_amount(node.value, value)} ({share})"
    sign = "+" if node.delta >= 0 else "−"
    return f"{_amount(node.value, value)}, {sign}{_amount(abs(node.delta), value)}"
