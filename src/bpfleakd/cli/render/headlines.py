"""The headline of a call site: the charged function, and the program's own function that called it."""

from __future__ import annotations

from rich.cells import cell_len

from bpfleakd.cli.render.names import short_function, unbounded_function
from bpfleakd.cli.render.stacks import basename, file_and_offset
from bpfleakd.cli.render.words import readable_function
from bpfleakd.model.code.stack import Frame
from bpfleakd.model.report import SiteReport
from bpfleakd.model.resources import DescriptorSite
from bpfleakd.printable import printable

_CALLS = " → "
# The share of the program's own function, which has priority.
_CALLERS_SHARE = 0.6


def headline(site: SiteReport | DescriptorSite, width: int | None = None) -> str:
    """Return "order → xmlNewDoc", the program's function and the library's that it called, or only one."""
    charged = readable_function(site.function) if site.function else "[unknown]"
    if site.called_by is None:
        return unbounded_function(charged) if width is None else short_function(charged, width)
    if not site.function and site.module:
        charged = printable(basename(site.module))
    caller = _name(site.called_by)
    if width is not None:
        left = width - len(_CALLS)
        room = max(int(left * _CALLERS_SHARE), left - cell_len(charged))
        caller = short_function(caller, room)
        charged = short_function(charged, left - cell_len(caller))
    return f"{caller}{_CALLS}{charged}"


def headline_place(site: SiteReport | DescriptorSite) -> str | None:
    """Return file:line of the program's own function, or its file; None for a charged one without a line."""
    caller = site.called_by
    if caller is None:
        return printable(site.location) if site.location else None
    if caller.location:
        return printable(caller.location)
    return printable(basename(caller.module)) if caller.module and caller.function else None


def _name(frame: Frame) -> str:
    if frame.function:
        return readable_function(frame.function)
    offset = frame.offset if frame.function_start is None else frame.function_start
    return file_and_offset(frame.module or "?", offset)
