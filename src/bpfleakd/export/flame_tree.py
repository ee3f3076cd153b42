"""Call sites as one tree of frames, outermost first: what flame graphs are drawn from.

Every node's value is its own and its children's together. With a baseline a node also has how much more it is
than there (`delta`); what was only in the baseline has the width that it had.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from bpfleakd.export.frame_names import frame_name
from bpfleakd.export.stack_values import StackValue, value_of
from bpfleakd.model.report import LeakReport, SiteReport
from bpfleakd.model.stack import Frame, FrameKind
from bpfleakd.printable import printable

__all__ = ["CodeKind", "FlameNode", "flame_tree"]


class CodeKind(StrEnum):
    """Whose code a frame is: what it is coloured by."""

    PROGRAM = "program"
    LIBRARY = "library"
    JIT = "jit"
    ALLOCATOR = "allocator"
    UNKNOWN = "unknown"
    NONE = "none"


@dataclass(slots=True)
class FlameNode:
    """A frame, with all stacks that go through it."""

    name: str
    kind: CodeKind
    place: str
    value: int = 0
    baseline: int = 0
    children: dict[tuple[str, str], FlameNode] = field(default_factory=dict)

    @property
    def delta(self) -> int:
        """How much more it is than in the baseline."""
        return self.value - self.baseline

    @property
    def width(self) -> int:
        """What it is drawn as wide as."""
        own = max(self.value, self.baseline)
        return max(own, sum(child.width for child in self.children.values()))


def flame_tree(report: LeakReport, value: StackValue, baseline: LeakReport | None = None) -> FlameNode:
    """Return the root, which stands for the process."""
    process = report.process
    root = FlameNode(f"{printable(process.comm)}, pid {process.pid}", CodeKind.NONE, "")
    for site in report.sites:
        for node in _path(root, site, process.exe):
            node.value += value_of(site, value)
    for site in baseline.sites if baseline else ():
        for node in _path(root, site, process.exe):
            node.baseline += value_of(site, value)
    _prune(root)
    return root


def _path(root: FlameNode, site: SiteReport, exe: str) -> list[FlameNode]:
    """The nodes of a site's stack from the root on, made where they are new."""
    path = [root]
    if site.truncated or not site.stack:
        name = "[truncated]" if site.truncated else "[no stack]"
        path.append(_child(root, name, "", CodeKind.UNKNOWN, ""))
    for depth, frame in enumerate(reversed(site.stack), 1):
        is_innermost = depth == len(site.stack)
        kind = CodeKind.ALLOCATOR if is_innermost else _kind(frame, exe)
        module = printable(frame.module or "")
        path.append(_child(path[-1], frame_name(frame), module, kind, _place(frame, module)))
    return path


def _child(parent: FlameNode, name: str, module: str, kind: CodeKind, place: str) -> FlameNode:
    return parent.children.setdefault((name, module), FlameNode(name, kind, place))


def _kind(frame: Frame, exe: str) -> CodeKind:
    if frame.kind is FrameKind.JIT:
        return CodeKind.JIT
    if frame.module is None:
        return CodeKind.UNKNOWN
    is_program = frame.module.rpartition("/")[2] == exe.rpartition("/")[2]
    return CodeKind.PROGRAM if is_program else CodeKind.LIBRARY


def _place(frame: Frame, module: str) -> str:
    return "  ".join(part for part in (module, printable(frame.location or "")) if part)


def _prune(node: FlameNode) -> None:
    """Drop what has no width."""
    node.children = {key: child for key, child in node.children.items() if child.value or child.baseline}
    for child in node.children.values():
        _prune(child)
