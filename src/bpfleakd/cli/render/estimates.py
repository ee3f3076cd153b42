"""Figures that may be estimates: with their standard errors, and said to be that."""

from __future__ import annotations

from bpfleakd.model.process import ProcessSummary, TracingMode
from bpfleakd.printable import printable
from bpfleakd.units import human_bytes

__all__ = ["estimated_amount", "estimated_count", "is_estimate", "mode_words", "recorded_share"]


def is_estimate(process: ProcessSummary) -> bool:
    """Whether some blocks of the process were not recorded, so that its figures are estimates."""
    return process.mode == TracingMode.SAMPLED


def estimated_amount(process: ProcessSummary) -> str:
    """The live bytes of a process, with one standard error if they are an estimate."""
    amount = human_bytes(process.live_bytes)
    return f"{amount} ± {human_bytes(round(process.live_bytes_stderr))}" if is_estimate(process) else amount


def estimated_count(process: ProcessSummary) -> str:
    """The live blocks of a process, likewise."""
    count = f"{process.live_count:,}"
    return f"{count} ± {process.live_count_stderr:,.0f}" if is_estimate(process) else count


def recorded_share(process: ProcessSummary) -> str:
    """Which blocks are recorded now, in a word or two: "all", "1 in 64 KiB"."""
    interval_bytes = process.sample_interval_bytes
    return "all" if interval_bytes is None else f"1 in {human_bytes(interval_bytes)}"


def mode_words(process: ProcessSummary) -> str:
    """How the process is recorded: "exact", or "estimates: 1 in 64 KiB recorded"."""
    if not is_estimate(process):
        return printable(process.mode)
    return f"estimates: {recorded_share(process)} recorded"
