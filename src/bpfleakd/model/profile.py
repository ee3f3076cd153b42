"""Input of profile viewers."""

from __future__ import annotations

from msgspec import Struct

from bpfleakd.model.code.mapping import CodeMapping
from bpfleakd.model.report import LeakReport


class HeapProfile(Struct, frozen=True):
    """All outstanding memory of a process, with the data that profile viewers need about it.

    `time_s` is when it was taken, in seconds since the Epoch; `mappings` are in order of address.
    """

    time_s: float
    report: LeakReport
    mappings: tuple[CodeMapping, ...]
