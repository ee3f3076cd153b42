"""Answers of one line."""

from __future__ import annotations

from bpfleakd.model.process import ProcessRow
from bpfleakd.printable import printable
from bpfleakd.units import human_bytes, human_duration

__all__ = ["attached_line", "detached_line"]


def attached_line(traced: ProcessRow) -> str:
    """Return who is traced now, and how."""
    functions = sorted({probe.function for probe in traced.probes})
    probed = f"{len(traced.probes)} functions probed ({', '.join(functions)})"
    return printable(f"attached to {_who(traced)} {traced.process.exe} by {traced.attach_method}, {probed}")


def detached_line(traced: ProcessRow) -> str:
    """Return who was traced, for how long, and what was outstanding."""
    process = traced.process
    left = f"{human_bytes(process.live_bytes)} live in {process.live_count:,} blocks"
    return printable(f"detached from {_who(traced)} after {human_duration(process.attached_s)}, {left}")


def _who(traced: ProcessRow) -> str:
    return f"{traced.process.pid} {traced.process.comm}"
