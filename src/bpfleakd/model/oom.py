"""A process that the kernel killed because memory had run out."""

from __future__ import annotations

from msgspec import Struct

from bpfleakd.model.address_space import BillLine
from bpfleakd.model.container import ContainerBill


class OomVictim(Struct, frozen=True):
    """The kernel's record of the victim of an OOM kill; None and "" for missing figures: older kernels report
    only the PID.

    That is of the process, or of one of its threads. `at_ns` is CLOCK_MONOTONIC.
    """

    pid: int
    at_ns: int
    comm: str = ""
    anon_bytes: int | None = None
    file_bytes: int | None = None
    shmem_bytes: int | None = None
    page_table_bytes: int | None = None


class OomKill(Struct, frozen=True):
    """A report's data on the kill: the kernel's figures at that moment, and the last bill before it.

    `bill`, `growth_summary` and `container` are as in AddressSpaceReport, made `bill_age_s` before the kill;
    None without a bill. `bill_missing` is why there is no bill, or no bill of the last change.
    """

    anon_bytes: int | None
    file_bytes: int | None
    shmem_bytes: int | None
    page_table_bytes: int | None
    bill: tuple[BillLine, ...] = ()
    bill_age_s: float | None = None
    growth_summary: str | None = None
    container: ContainerBill | None = None
    bill_missing: str | None = None
