"""Profiles for https://www.speedscope.app: one for each figure, over the same frames.

Format: https://www.speedscope.app/file-format-schema.json.
"""

from __future__ import annotations

import json
from typing import Any

from bpfleakd import __version__
from bpfleakd.export.frame_names import frame_name, source_place
from bpfleakd.export.stack_values import StackValue, value_of
from bpfleakd.model.code.stack import Frame
from bpfleakd.model.report import HeapProfile
from bpfleakd.printable import printable

_UNITS = {
    StackValue.LIVE_BYTES: "bytes",
    StackValue.LIVE_COUNT: "none",
    StackValue.ALLOCATED_BYTES: "bytes",
    StackValue.ALLOCATED_COUNT: "none",
    StackValue.GROWTH: "bytes",
}


def speedscope_profile(profile: HeapProfile) -> str:
    """The profile as JSON for speedscope; its first figure is the live memory."""
    process = profile.report.process
    sites = profile.report.sites
    numbers: dict[tuple[str, str, int], int] = {}
    stacks = [[_number(numbers, frame) for frame in reversed(site.stack)] for site in sites]
    return json.dumps(
        {
            "$schema": "https://www.speedscope.app/file-format-schema.json",
            "exporter": f"bpfleakd {__version__}",
            "name": f"{printable(process.comm)}, pid {process.pid}",
            "activeProfileIndex": 0,
            "shared": {"frames": [_frame(*frame) for frame in numbers]},
            "profiles": [
                _profile(value, stacks, [value_of(site, value) for site in sites]) for value in StackValue
            ],
        }
    )


def _number(numbers: dict[tuple[str, str, int], int], frame: Frame) -> int:
    return numbers.setdefault((frame_name(frame), *source_place(frame)), len(numbers))


def _frame(name: str, file: str, line: int) -> dict[str, Any]:
    return {"name": name} | ({"file": file, "line": line} if file else {})


def _profile(value: StackValue, stacks: list[list[int]], weights: list[int]) -> dict[str, Any]:
    shown = [index for index, weight in enumerate(weights) if weight > 0]
    return {
        "type": "sampled",
        "name": value.value,
        "unit": _UNITS[value],
        "startValue": 0,
        "endValue": sum(weights[index] for index in shown),
        "samples": [stacks[index] for index in shown],
        "weights": [weights[index] for index in shown],
    }
