"""A Python interpreter's layout for the stack walker: struct python of bpf/abi_python.h."""

from __future__ import annotations

import numpy as np

from bpfleakd.kernel import abi
from bpfleakd.model.code.python_walk import PythonWalk

_OFFSET = np.dtype("u2")
_OFFSET_MAX = abi.NO_SECOND_STEP - 1
# Programs write `code_releases` and `cframe_distance`.
_OTHERS = {"loops", "loop_count", "sees_releases", "cframe_distance", "code_releases"}


def python_row(walk: PythonWalk, *, sees_releases: bool) -> np.void:
    """A row of type abi.PYTHON; None becomes NO_SECOND_STEP. Raises ValueError if an offset does not fit."""
    row: np.void = np.zeros(1, abi.PYTHON)[0]
    for name in abi.PYTHON.names or ():
        if name in _OTHERS:
            continue
        value = walk.fields[name]
        if value is None:
            row[name] = abi.NO_SECOND_STEP
            continue
        if abi.PYTHON[name].base == _OFFSET and np.max(value) > _OFFSET_MAX:
            raise ValueError("an offset of this Python is larger than the stack walker can use")
        row[name] = value
    if row["frame_bytes"] > abi.PYTHON_FRAME_BYTES:
        raise ValueError("a frame of this Python is larger than the stack walker can use")
    loops = np.array(list(walk.loops)[: abi.PYTHON_LOOPS], abi.PYTHON_LOOP)
    row["loops"][: len(loops)] = loops
    row["loop_count"] = len(loops)
    row["sees_releases"] = sees_releases
    return row
