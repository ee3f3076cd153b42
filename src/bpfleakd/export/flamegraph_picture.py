"""Flame graphs as a picture (SVG), without a script; the daemon makes none, and needs no XML.

The colours are those of the page (flamegraph.py).
"""

from __future__ import annotations

from xml.etree import ElementTree

from bpfleakd.export.flame_tree import FlameNode, flame_tree
from bpfleakd.export.flamegraph import COLOURS, amount, subtitle
from bpfleakd.export.stack_values import StackValue
from bpfleakd.model.report import LeakReport

_SVG_WIDTH, _ROW_HEIGHT, _MARGIN, _CHARACTER_WIDTH = 1200.0, 18, 24, 6.6
_NARROWEST = 0.4


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
    heading.text = f"{root.name}: {subtitle(tree, value, baseline is not None)}"
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
    """Draw a frame on its caller; `most` is the greatest change, 0 without a comparison."""
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


def _depth(node: FlameNode) -> int:
    return 1 + max((_depth(child) for child in node.children), default=0)


def _figures(node: FlameNode, total: int, value: StackValue, most: int) -> str:
    share = f"{100 * node.value / total:.1f}%" if total else ""
    if not most:
        return f"{amount(node.value, value)} ({share})"
    sign = "+" if node.delta >= 0 else "−"
    return f"{amount(node.value, value)}, {sign}{amount(abs(node.delta), value)}"
