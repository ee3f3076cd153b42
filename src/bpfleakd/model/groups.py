"""Outstanding memory of a process, by function, module or thread."""

from __future__ import annotations

from enum import StrEnum

import msgspec
from msgspec import Struct

from bpfleakd.model.code.stack import Frame, StackEnd
from bpfleakd.model.process import ProcessSummary
from bpfleakd.model.report import SuppressedSites


class GroupKey(StrEnum):
    """What call sites are grouped by. SITE and STACK are the same grouping, the second with frames.

    CALLER is the program's own function that called the charged one of a library, or else the charged one.
    """

    SITE = "site"
    FUNCTION = "function"
    CALLER = "caller"
    MODULE = "module"
    THREAD = "thread"
    STACK = "stack"


class SiteGroup(Struct, frozen=True):
    """A group of call sites; `sites` are their fingerprints.

    The standard errors are 0.0 if every block was recorded, and None for threads.

    `group` is the function, the module, the tid in digits or the fingerprint; None holds the rest. Frees and
    growth of threads are unknown, so they only have live figures. `comm` is a thread's name, `stack` the
    frames of a stack.
    """

    group: str | None
    live_bytes: int
    live_count: int
    allocated_bytes: int | None
    allocated_count: int | None
    growth_bytes_per_s: float | None
    sites: tuple[str, ...]
    comm: str | None = None
    stack: tuple[Frame, ...] = ()
    truncated: StackEnd | None = None
    live_bytes_stderr: float | None = None
    live_count_stderr: float | None = None


class GroupedReport(Struct, frozen=True):
    """All call sites of a process in groups, largest first; without the `suppressed` ones."""

    process: ProcessSummary
    groups: tuple[SiteGroup, ...]
    losses: dict[str, int]
    suppressed: dict[str, SuppressedSites] = msgspec.field(default_factory=dict)
