"""A stack, innermost first, one line per frame: function, module, file:line."""

from __future__ import annotations

from rich.text import Text

from bpfleakd.cli.render.names import short_function, without_parameters
from bpfleakd.cli.render.words import readable_function
from bpfleakd.model.blocks import SiteBlocks
from bpfleakd.model.code.stack import Frame, StackEnd
from bpfleakd.model.difference import SiteDifference
from bpfleakd.model.groups import SiteGroup
from bpfleakd.model.report import SiteReport
from bpfleakd.model.resources import DescriptorSite
from bpfleakd.model.scan import ScannedSite
from bpfleakd.printable import printable, shortened

_INDENT = "      "
_SHORTEST_NAME = 24

_TRUNCATED = {
    StackEnd.DEPTH: "the stack has more frames than are recorded",
    StackEnd.READ_FAULT: "the next frame's memory could not be read",
    StackEnd.NO_RULE: "the next frame has no unwind information",
    StackEnd.FRAME_POINTER_END: "the chain of frame pointers ends here; frames may be missing",
    StackEnd.TABLE_PENDING: "frames may be missing: an unwind table was not ready yet",
    StackEnd.GO_STACK: "Go code called this; the goroutine's own stack is not walked",
    StackEnd.LOST: "the stack was not stored: the table of stacks was full",
}


def stack_lines(
    site: SiteReport | SiteGroup | SiteBlocks | ScannedSite | SiteDifference | DescriptorSite,
    width: int | None,
) -> list[Text]:
    """The lines of a call site's stack; the last says if it is incomplete."""
    lines = [_frame_line(frame, width) for frame in site.stack]
    if site.truncated and site.truncated != StackEnd.BOTTOM:
        lines.append(
            Text(f"{_INDENT}… truncated: {_TRUNCATED.get(site.truncated, site.truncated)}", "yellow")
        )
    return lines


def basename(path: str) -> str:
    """Return the last part of a path; all of "[vdso]" or "//anon"-like names without one."""
    return path.rpartition("/")[2] or path


def file_and_offset(module: str, offset: int | None) -> str:
    """Return the name of a file, with the offset in it if there is one: "libssl.so.3+0x44640"."""
    name = printable(basename(module))
    return name if offset is None else f"{name}+{offset:#x}"


def _frame_line(frame: Frame, width: int | None) -> Text:
    name = readable_function(frame.function) if frame.function else f"{frame.address:#x}"
    place = "  ".join(part for part in (_module(frame), _location(frame)) if part)
    if width is not None:
        room = max(width - len(_INDENT) - 2, 2 * _SHORTEST_NAME)
        for_name = max(_SHORTEST_NAME, min(len(without_parameters(name)) + len("(…)"), room // 2))
        place = shortened(place, room - for_name, keep_end=True)
        name = short_function(name, room - len(place))
    return Text.assemble(_INDENT, name, "  ", (place, "dim"))


def _module(frame: Frame) -> str:
    if frame.module is None:
        return f"[{frame.kind}]"
    place = file_and_offset(frame.module, None if frame.location else frame.offset)
    return place + (" (inlined)" if frame.inlined else "")


def _location(frame: Frame) -> str:
    return printable(frame.location) if frame.location else ""
