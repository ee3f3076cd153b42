"""A Python program whose code objects have seemingly long line tables that never reach a line."""

from __future__ import annotations

import ctypes
import sys
import time
from types import FunctionType

_ENDLESS_ENTRY = b"\xf0" + b"\x7f" * (4 << 20)

_c = ctypes.CDLL(None)


def allocate() -> None:
    """Allocate, and keep it."""
    _c.malloc(101)


def main() -> None:
    functions = []
    for number in range(int(sys.argv[1])):
        # 4 MiB is the most that was ever read of one.
        code = allocate.__code__.replace(
            co_qualname=f"hostile_{number}", co_linetable=_ENDLESS_ENTRY[: 4 << 20]
        )
        functions.append(FunctionType(code, globals()))
    while True:
        for function in functions:
            function()
        time.sleep(0.05)


if __name__ == "__main__":
    main()
