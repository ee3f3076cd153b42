"""The stack walker's parameters for a Python interpreter."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct


class PythonWalk(Struct, frozen=True):
    """struct python of bpf/abi_python.h; `loops` are the (start, end) of the evaluation loop's code.

    `code_release` is the file offset of the function that releases code objects.
    """

    loops: tuple[tuple[int, int], ...]
    fields: Mapping[str, int | tuple[int, ...] | None]
    code_release: int
