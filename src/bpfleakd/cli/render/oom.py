"""The lines of a report on a process that the kernel killed because memory had run out."""

from __future__ import annotations

from bpfleakd.model.address_space import BillLine
from bpfleakd.model.oom import OomKill
from bpfleakd.printable import printable
from bpfleakd.units import human_bytes, human_duration

_BILL_LINES = 5


def oom_lines(kill: OomKill) -> list[str]:
    """Its memory at the kill, and the use of that shortly before."""
    figures = (
        ("anonymous", kill.anon_bytes),
        ("files", kill.file_bytes),
        ("shared", kill.shmem_bytes),
        ("page tables", kill.page_table_bytes),
    )
    had = ", ".join(f"{human_bytes(size)} {what}" for what, size in figures if size)
    lines = [f"killed by the kernel because memory had run out{': it had ' if had else ''}{had}"]
    if kill.bill and kill.bill_age_s is not None:
        spent = ", ".join(map(_words, kill.bill[:_BILL_LINES]))
        lines.append(f"{human_duration(kill.bill_age_s)} before: {spent}")
    if kill.bill_missing:
        what = "no later bill of its memory" if kill.bill else "no bill of its memory"
        lines.append(f"{what}: {printable(kill.bill_missing)}")
    if kill.growth_summary:
        lines.append(printable(kill.growth_summary))
    if kill.container:
        bill = kill.container
        parts = ", ".join(f"{human_bytes(line.bytes)} {line.kind}" for line in bill.lines[:_BILL_LINES])
        limit = human_bytes(bill.limit_bytes)
        lines.append(f"its container: {human_bytes(bill.used_bytes)} of {limit}: {parts}")
    return lines


def _words(line: BillLine) -> str:
    return f"{human_bytes(line.bytes)} {line.kind}" + (f" ({printable(line.note)})" if line.note else "")
