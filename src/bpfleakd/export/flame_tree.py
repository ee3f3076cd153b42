"""Call sites as one tree of frames, outermost first: the input of flame graphs.

Every node's value is its own and its children's together. With a baseline a node also has its difference from
there (`delta`); a node that is only in the baseline has its width there.

Stacks are rows of frame numbers, sorted: the nodes at one depth are the runs of rows that are equal so far,
and their figures are sums over these runs. So ten thousand stacks cost numpy some milliseconds, and only
drawn nodes become objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from bpfleakd.export.frame_names import frame_name
from bpfleakd.export.stack_values import StackValue, value_of
from bpfleakd.model.code.stack import Frame, FrameKind
from bpfleakd.model.report import LeakReport, SiteReport
from bpfleakd.printable import printable

# More than the pixels of a screen, and as many as a browser draws without a pause.
NODES_MAX = 20_000


class CodeKind(StrEnum):
    """The owner of a frame's code, which decides its colour."""

    PROGRAM = "program"
    LIBRARY = "library"
    JIT = "jit"
    ALLOCATOR = "allocator"
    UNKNOWN = "unknown"
    NONE = "none"


class FlameNode(Struct):
    """A frame, with all stacks that contain it. `width` is its drawn width."""

    name: str
    kind: CodeKind
    place: str
    value: int = 0
    baseline: int = 0
    width: int = 0
    children: list[FlameNode] = msgspec.field(default_factory=list)

    @property
    def delta(self) -> int:
        """The difference from the baseline."""
        return self.value - self.baseline


class FlameTree(Struct, frozen=True):
    """The tree; `root` is the process, and `left_out` the number of the narrowest nodes left out."""

    root: FlameNode
    left_out: int


def flame_tree(
    report: LeakReport, value: StackValue, baseline: LeakReport | None = None, *, nodes_max: int = NODES_MAX
) -> FlameTree:
    """The tree of a report's sites: the root and the widest `nodes_max` nodes."""
    process, frames = report.process, _Frames(report.process.exe)
    sites = (*report.sites, *(baseline.sites if baseline else ()))
    rows = frames.rows(sites)
    figures = np.zeros((len(sites), 2), np.int64)
    now = len(report.sites)
    figures[:now, 0] = [value_of(site, value) for site in sites[:now]]
    figures[now:, 1] = [value_of(site, value) for site in sites[now:]]
    order = np.lexsort(rows.T[::-1]) if rows.size else np.arange(len(rows))
    levels = _levels(rows[order], figures[order])
    live, before = figures.sum(axis=0).tolist()
    width = max(live, before, int(levels[0].widths.sum()) if levels else 0)
    root = FlameNode(f"{printable(process.comm)}, pid {process.pid}", CodeKind.NONE, "", live, before, width)
    drawn = _widest(levels, nodes_max)
    above = {0: root}
    for level, is_drawn in zip(levels, drawn, strict=True):
        above = dict(_add_nodes(above, level, np.flatnonzero(is_drawn), frames.shown))
    wide_count = sum(int(np.count_nonzero(level.widths)) for level in levels)
    return FlameTree(root, wide_count - sum(int(np.count_nonzero(is_drawn)) for is_drawn in drawn))


def _add_nodes(
    above: dict[int, FlameNode],
    level: _Level,
    numbers: NDArray[np.intp],
    shown: Sequence[tuple[str, CodeKind, str]],
) -> Iterator[tuple[int, FlameNode]]:
    """Create the nodes with these numbers of a level, and add them to their parents; yields both."""
    columns = (level.frames, level.parents, level.figures, level.widths)
    rows = zip(numbers.tolist(), *(column[numbers].tolist() for column in columns), strict=True)
    for number, frame, parent, (value, baseline), width in rows:
        name, kind, place = shown[frame]
        node = FlameNode(name, kind, place, value, baseline, width)
        above[parent].children.append(node)
        yield number, node


class _Level(Struct):
    """The nodes at one depth: the frame of each, its parent's place in the level above, sums and width."""

    frames: NDArray[np.int32]
    parents: NDArray[np.intp]
    figures: NDArray[np.int64]
    widths: NDArray[np.int64]


def _levels(rows: NDArray[np.int32], figures: NDArray[np.int64]) -> list[_Level]:
    """The levels of sorted rows, from the outermost frames on. A stack that has ended has frame 0."""
    levels: list[_Level] = []
    begins = np.zeros(len(rows), bool)
    begins[:1] = True
    parent_of_row = np.zeros(len(rows), np.intp)
    for column in rows.T:
        begins[1:] |= column[1:] != column[:-1]
        starts = np.flatnonzero(begins)
        sums = np.add.reduceat(figures, starts, axis=0)
        sums[column[starts] == 0] = 0
        levels.append(_Level(column[starts], parent_of_row[starts], sums, sums.max(axis=1)))
        parent_of_row = np.cumsum(begins) - 1
    for level, below in zip(levels[-2::-1], levels[:0:-1], strict=True):
        # Every node has rows, and thus a node in the next level, in the same order.
        first_children = np.flatnonzero(np.diff(below.parents, prepend=-1))
        np.maximum(level.widths, np.add.reduceat(below.widths, first_children), out=level.widths)
    return levels


def _widest(levels: list[_Level], nodes_max: int) -> list[NDArray[np.bool_]]:
    """Which nodes are drawn. A parent is at least as wide as its children, and precedes them."""
    if not levels:
        return []
    widths = np.concatenate([level.widths for level in levels])
    drawn = widths > 0
    if int(drawn.sum()) > nodes_max:
        # Equal widths in the order of their levels.
        drawn[np.argsort(-widths, kind="stable")[nodes_max:]] = False
    return np.split(drawn, np.cumsum([len(level.widths) for level in levels])[:-1])


class _Frames:
    """Numbers for frames, from 1: frames of the same function and module have the same number."""

    def __init__(self, exe: str) -> None:
        self._exe = exe.rpartition("/")[2]
        self._of_frame: dict[tuple[int, str | None, str | None, bool], int] = {}
        self._of_name: dict[tuple[str, str], int] = {}
        # Name, kind and place of each number.
        self.shown: list[tuple[str, CodeKind, str]] = [("", CodeKind.NONE, "")]

    def rows(self, sites: Iterable[SiteReport]) -> NDArray[np.int32]:
        """One row per site: the numbers of its frames, outermost first, and zeroes."""
        stacks = [list(self._numbers(site)) for site in sites]
        rows = np.zeros((len(stacks), max(map(len, stacks), default=0)), np.int32)
        for row, numbers in zip(rows, stacks, strict=True):
            row[: len(numbers)] = numbers
        return rows

    def _numbers(self, site: SiteReport) -> Iterator[int]:
        if site.truncated or not site.stack:
            yield self._frame_named(
                "[truncated]" if site.truncated else "[no stack]", "", CodeKind.UNKNOWN, ""
            )
        known = self._of_frame
        for outwards in range(len(site.stack) - 1, -1, -1):
            frame = site.stack[outwards]
            key = (frame.address, frame.function, frame.module, outwards == 0)
            number = known.get(key)
            if number is None:
                number = known[key] = self._number(frame, is_innermost=outwards == 0)
            yield number

    def _number(self, frame: Frame, *, is_innermost: bool) -> int:
        kind = CodeKind.ALLOCATOR if is_innermost else self._kind(frame)
        module = printable(frame.module or "")
        place = "  ".join(part for part in (module, printable(frame.location or "")) if part)
        return self._frame_named(frame_name(frame), module, kind, place)

    def _frame_named(self, name: str, module: str, kind: CodeKind, place: str) -> int:
        number = self._of_name.setdefault((name, module), len(self.shown))
        if number == len(self.shown):
            self.shown.append((name, kind, place))
        return number

    def _kind(self, frame: Frame) -> CodeKind:
        if frame.kind in (FrameKind.JIT, FrameKind.INTERPRETED):
            return CodeKind.JIT
        if frame.module is None:
            return CodeKind.UNKNOWN
        is_program = frame.module.rpartition("/")[2] == self._exe
        return CodeKind.PROGRAM if is_program else CodeKind.LIBRARY
