"""Collapsed stacks: a line a call site, outermost frame first, as flame graph tools read them.

    main;serve;malloc 4096

Format: https://github.com/brendangregg/FlameGraph#2-fold-stacks.
"""

from __future__ import annotations

from collections import Counter

from bpfleakd.export.frame_names import frame_name
from bpfleakd.export.stack_values import StackValue, value_of
from bpfleakd.model.report import LeakReport, SiteReport


def collapsed_stacks(report: LeakReport, value: StackValue) -> str:
    """One line for each stack with a nonzero `value`."""
    totals: Counter[str] = Counter()
    for site in report.sites:
        totals[_line(site)] += value_of(site, value)
    return "".join(f"{line} {total}\n" for line, total in totals.items() if total > 0)


def _line(site: SiteReport) -> str:
    frames = [frame_name(frame).replace(";", ":") for frame in reversed(site.stack)]
    if site.truncated or not frames:
        frames.insert(0, "[truncated]" if site.truncated else "[no stack]")
    return ";".join(frames)
