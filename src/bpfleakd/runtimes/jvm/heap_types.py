"""The objects of a Java heap by type: the JVM's own `GC.class_histogram -all`.

It runs no collection, so garbage counts too. The process is stopped for it, so it is made on request only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from bpfleakd.runtimes.jvm.attach import JavaAttach
from bpfleakd.runtimes.jvm.java_names import class_name
from bpfleakd.runtimes.runtime import TypeCount

_COMMAND = "GC.class_histogram -all"
_TIMEOUT_S = 60.0
# Measured: 0.8 s for 264 MB.
_S_PER_BYTE = 0.8 / (264 << 20)
_S_AT_LEAST = 0.05
# "   1:         20011        1600880  [B (java.base@17.0.15)"
_ROW = re.compile(r"\s*\d+:\s+(\d{1,15})\s+(\d{1,18})\s+(\S.{0,1023}?)(?: \([^()]*\))?\s*")
_PRIMITIVES = {
    "B": "byte",
    "C": "char",
    "D": "double",
    "F": "float",
    "I": "int",
    "J": "long",
    "S": "short",
    "Z": "boolean",
}


class JavaTypes:
    """Counts the objects of one process. `heap_bytes` is the size of its heap, None if unknown."""

    work = "a walk over all objects"
    includes_garbage = True

    def __init__(self, attach: JavaAttach, heap_bytes: Callable[[], int | None]) -> None:
        self._attach = attach
        self._heap_bytes = heap_bytes

    def price_s(self) -> float | None:
        """How long the process will be stopped, in seconds, approximately; None if unknown."""
        heap_bytes = self._heap_bytes()
        return None if heap_bytes is None else max(_S_AT_LEAST, heap_bytes * _S_PER_BYTE)

    def read(self) -> Sequence[TypeCount]:
        """All types, most bytes first. Raises AttachError."""
        return histogram_rows(self._attach.run(_COMMAND, _TIMEOUT_S))


def histogram_rows(text: str) -> list[TypeCount]:
    """The rows of a class histogram, most bytes first.

    Classes with the same name from several loaders are one type.
    """
    sums: dict[str, tuple[int, int]] = {}
    for line in text.splitlines():
        if found := _ROW.fullmatch(line):
            name = java_type_name(found[3])
            before = sums.get(name, (0, 0))
            sums[name] = before[0] + int(found[2]), before[1] + int(found[1])
    rows = [TypeCount(name, *figures) for name, figures in sums.items()]
    return sorted(rows, key=lambda one: (-one.live_bytes, one.type))


def java_type_name(name: str) -> str:
    """A type in Java's syntax: `[[I` is int[][], `[Lshop.Order;` is shop.Order[]."""
    element = name.lstrip("[")
    arrays = "[]" * (len(name) - len(element))
    if arrays and element in _PRIMITIVES:
        return _PRIMITIVES[element] + arrays
    if arrays and element.startswith("L") and element.endswith(";"):
        element = element[1:-1]
    return class_name(element) + arrays
