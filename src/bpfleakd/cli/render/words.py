"""Words and figures of views: names, estimates, losses, verdicts, answers of one line."""

from __future__ import annotations

import json
import textwrap
from bisect import bisect_left
from collections.abc import Mapping, Sequence

import msgspec

from bpfleakd.model.limit import MemoryLimitKind
from bpfleakd.model.losses import LOSS_WORDS
from bpfleakd.model.process import GO_PROFILE_MODE, ProcessRow, ProcessSummary, TracingMode
from bpfleakd.model.resources import ResourceUse
from bpfleakd.model.verdict import ProcessVerdict, Verdict
from bpfleakd.printable import printable, shortened
from bpfleakd.units import human_bytes, human_duration, human_rate

# What a leak takes to be called one (docs/verdicts.md), and from when and which rates on it is worth a line.
_BLOCKS_OF_LEAK = 20
_EARLIEST_S = 10.0
_WORTH_A_WORD = 1024.0
# A sentence may quote what a program chose, of any length.
_SENTENCE_LINES_MAX = 6
_SHORTEST_WRAPPED = 16
# Of the probed functions so many are named: an allocator may have eighty.
_FUNCTIONS_NAMED = 12

# Long type names of the C++ library, with the names that everybody uses.
_EVERYDAY_NAMES = (
    ("std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >", "std::string"),
    ("std::basic_string_view<char, std::char_traits<char> >", "std::string_view"),
    ("std::__cxx11::", "std::"),
)


def fitted(line: str, width: int | None) -> str:
    """A line for a terminal of this width; None: as wide as it gets."""
    return line if width is None else shortened(line, width)


def wrapped(line: str, width: int | None) -> list[str]:
    """Return a sentence as the few lines it takes at this width, the later ones indented as the first is."""
    if width is None or len(line) <= width:
        return [line]
    indent = " " * (len(line) - len(line.lstrip()))
    room = max(width, len(indent) + _SHORTEST_WRAPPED)
    return textwrap.wrap(
        line,
        room,
        subsequent_indent=indent,
        max_lines=_SENTENCE_LINES_MAX,
        placeholder=" …",
        break_on_hyphens=False,
    )


def readable_function(name: str) -> str:
    """A demangled name with the everyday names of the standard library's long types."""
    for long, short in _EVERYDAY_NAMES:
        name = name.replace(long, short)
    return printable(name)


def is_estimate(process: ProcessSummary) -> bool:
    """Whether some blocks of the process were not recorded, so that its figures are estimates."""
    return process.mode in (TracingMode.SAMPLED, TracingMode.INSIDE, GO_PROFILE_MODE)


def estimated_amount(process: ProcessSummary) -> str:
    """The live bytes of a process, with one standard error if they are an estimate."""
    amount = human_bytes(process.live_bytes)
    return f"{amount} ± {human_bytes(round(process.live_bytes_stderr))}" if is_estimate(process) else amount


def estimated_count(process: ProcessSummary) -> str:
    """The live blocks of a process, likewise."""
    count = f"{process.live_count:,}"
    return f"{count} ± {process.live_count_stderr:,.0f}" if is_estimate(process) else count


def recorded_share(process: ProcessSummary) -> str:
    """The recorded share of blocks, in a word or two: "all", "1 in 64 KiB"."""
    interval_bytes = process.sample_interval_bytes
    return "all" if interval_bytes is None else f"1 in {human_bytes(interval_bytes)}"


def mode_words(process: ProcessSummary) -> str:
    """How the process is recorded: "exact", or "estimates: 1 in 64 KiB recorded"."""
    if not is_estimate(process):
        return printable(process.mode)
    if process.mode == GO_PROFILE_MODE and process.sample_interval_bytes is None:
        return "go-profile: off"
    return f"estimates: {recorded_share(process)} recorded"


def unseen_lines(process: ProcessSummary) -> list[str]:
    """One line if sampling has been too sparse so far to show slow leaks."""
    interval_bytes = process.sample_interval_bytes
    if not is_estimate(process) or interval_bytes is None or process.attached_s < _EARLIEST_S:
        return []
    slowest = _BLOCKS_OF_LEAK * interval_bytes / process.attached_s
    if slowest < _WORTH_A_WORD:
        return []
    rate = human_rate(slowest).removeprefix("+")
    return [f"a leak of less than {rate} does not show yet: too few of its blocks are recorded"]


def loss_lines(losses: Mapping[str, int]) -> list[str]:
    """One line per kind of loss; none without losses."""
    return [f"missed: {count:,} {_words(reason)}" for reason, count in losses.items() if count]


def _words(reason: str) -> str:
    return LOSS_WORDS.get(reason) or printable(reason).replace("_", " ")


def resource_lines(resources: Sequence[ResourceUse]) -> list[str]:
    """One line for file descriptors, and one for threads, if their number grows."""
    return [printable(use.reason) for use in resources if use.verdict in (Verdict.LEAK, Verdict.GROWING)]


_LIMITS = {
    MemoryLimitKind.CGROUP: "its control group",
    MemoryLimitKind.ADDRESS_SPACE: "RLIMIT_AS",
    MemoryLimitKind.DATA: "RLIMIT_DATA",
    MemoryLimitKind.HOST: "the machine",
    MemoryLimitKind.MANAGED_HEAP: "the managed heap",
}


def verdict_lines(verdict: ProcessVerdict) -> list[str]:
    """Return one line, or two if a limit is in sight, or there is one nearer than the machine's."""
    lines, limit = [printable(verdict.reason)], verdict.limit
    if limit is None:
        return lines
    words = f"the {human_bytes(limit.limit_bytes)} of {_LIMITS[limit.kind]}"
    if verdict.limit_reached_s is not None:
        lines.append(f"at this rate {words} are used up in {human_duration(verdict.limit_reached_s)}")
    elif limit.kind is not MemoryLimitKind.HOST:
        lines.append(f"nearest limit: {words}, {human_bytes(limit.used_bytes)} used")
    return lines


_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII = "_.-:=+*#"


def sparkline(
    ends_s: Sequence[float], values: Sequence[float], width: int, *, ascii_only: bool = False
) -> str:
    """Return at most `width` characters from 0 (the lowest block) to the largest value, evenly over time.

    `values` belong to bins of time that end at `ends_s`, and may differ in length; "" without values.
    """
    if not values or width < 1 or ends_s[-1] <= 0:
        return ""
    width = min(width, 4 * len(values))
    levels = _ASCII if ascii_only else _BLOCKS
    highest = max(values)
    if highest <= 0:
        return levels[0] * width
    times = (ends_s[-1] * (column + 0.5) / width for column in range(width))
    picked = (values[min(bisect_left(ends_s, time_s), len(values) - 1)] for time_s in times)
    return "".join(levels[round(max(0.0, value) / highest * (len(levels) - 1))] for value in picked)


def attached_line(traced: ProcessRow) -> str:
    """Return which process is traced now, and how."""
    functions = sorted({probe.function for probe in traced.probes})
    named = functions[:_FUNCTIONS_NAMED] + ["…"] * (len(functions) > _FUNCTIONS_NAMED)
    probed = f"{len(traced.probes)} functions probed ({', '.join(named)})"
    if traced.process.mode == GO_PROFILE_MODE:
        probed = f"its own heap profile is read, {probed if functions else 'no function is probed'}"
    return printable(f"attached to {_who(traced)} {traced.process.exe} by {traced.attach_method}, {probed}")


def detached_line(traced: ProcessRow) -> str:
    """Return which process was traced, for how long, and its outstanding memory."""
    process = traced.process
    left = f"{human_bytes(process.live_bytes)} live in {process.live_count:,} blocks"
    return printable(f"detached from {_who(traced)} after {human_duration(process.attached_s)}, {left}")


def _who(traced: ProcessRow) -> str:
    return f"{traced.process.pid} {traced.process.comm}"


def json_text(answer: object) -> str:
    """Return an answer as indented JSON in ASCII, so that no name in it can steer a terminal."""
    text = json.dumps(msgspec.to_builtins(answer), indent=2, ensure_ascii=True)
    # The one control character that JSON leaves as it is.
    return text.replace("\x7f", "\\u007f")
