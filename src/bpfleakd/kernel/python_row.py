"""A Python interpreter as the stack walker reads it: struct python of bpf/abi.h."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np

from bpfleakd.kernel import abi
from bpfleakd.model.python_walk import PythonWalk

__all__ = ["python_row"]

_OFFSET_MAX = abi.NO_SECOND_STEP - 1


def python_row(walk: PythonWalk) -> np.void:
    """A row of type abi.PYTHON. Raises ValueError if an offset has no room in it."""
    fields = asdict(walk)
    loops = np.array(list(fields.pop("loops"))[: abi.PYTHON_LOOPS], abi.PYTHON_LOOP)
    if fields["frame_path_second"] is None:
        fields["frame_path_second"] = abi.NO_SECOND_STEP
    offsets = [
        value
        for name, value in fields.items()
        if abi.PYTHON[name].base == np.dtype("u2") and name != "frame_path_second"
    ]
    largest = max(int(np.max(value)) for value in offsets)
    if largest > _OFFSET_MAX or walk.frame_bytes > abi.PYTHON_FRAME_BYTES:
        raise ValueError("an offset of this Python is larger than the stack walker can use")
    row: np.void = np.zeros(1, abi.PYTHON)[0]
    for name, value in fields.items():
        row[name] = value
    row["loops"][: len(loops)] = loops
    row["loop_count"] = len(loops)
    return row
