"""Reports to render, to send and to export. The figures differ, so that none is right by accident."""

from __future__ import annotations

from typing import Any

from bpfleakd.model.address_space import (
    AddressSpaceReport,
    BillKind,
    BillLine,
    JitModule,
    MemoryShares,
    MemoryUse,
    UseSummary,
)
from bpfleakd.model.blocks import BlockReport, BlocksReport, SiteBlocks
from bpfleakd.model.code.mapping import CodeMapping
from bpfleakd.model.code.probe import FunctionRole, ProbedFunction
from bpfleakd.model.code.stack import Frame, FrameKind
from bpfleakd.model.daemon import DaemonStats
from bpfleakd.model.groups import GroupedReport, SiteGroup
from bpfleakd.model.limit import MemoryLimit, MemoryLimitKind
from bpfleakd.model.metrics import MetricsSnapshot
from bpfleakd.model.process import ProcessLabels, ProcessRow, ProcessState, ProcessSummary, TracingMode
from bpfleakd.model.report import HeapProfile, LeakReport, SiteReport
from bpfleakd.model.scan import (
    Reachability,
    ReachabilitySums,
    ScanMethod,
    ScannedBlock,
    ScannedSite,
    ScanReport,
)
from bpfleakd.model.site import AllocationKind, ThreadShare
from bpfleakd.model.supervision import SupervisedProcess, SupervisionState
from bpfleakd.model.verdict import ProcessVerdict, Verdict
from bpfleakd.model.watching import WatchedProcess, WatchState

# A name that would set the window title, move the cursor, use rich's markup, end a line, turn the text
# direction around, start a C1 control sequence, and is not even UTF-8.
HOSTILE = "[red]\x1b]0;owned\x07\x1b[2J\nx\u202e\x9b1m\udcff\x7f"


def a_frame(function: str | None = "leak_here", **changes: Any) -> Frame:
    fields = {
        "function": function,
        "module": "/usr/bin/leaky",
        "offset": 0x1139,
        "location": "/src/leaky.c:23",
        "address": 0x555555555139,
        "kind": FrameKind.NATIVE,
    }
    return Frame(**{**fields, **changes})


def a_profile(*sites: SiteReport) -> HeapProfile:
    mapping = CodeMapping(0x555555555000, 0x555555557000, 0x1000, "/usr/bin/leaky", "deadbeef")
    return HeapProfile(1_700_000_000.25, a_report(sites=sites or (a_site(),)), (mapping,))


def a_stack() -> tuple[Frame, ...]:
    libc = {"module": "/lib/x86_64-linux-gnu/libc.so.6", "location": None}
    return (
        a_frame("malloc", offset=0x99E00, address=0x7FFFF7E59E00, **libc),
        a_frame("leak_here"),
        a_frame("main", offset=0x11A7, location="/src/leaky.c:101", address=0x5555555551A7),
        a_frame("_start", offset=0x1061, location=None, address=0x555555555061),
    )


def a_site(function: str | None = "leak_here", **changes: Any) -> SiteReport:
    fields = {
        "site": "5d41402abc4b2a76",
        "kind": AllocationKind.HEAP,
        "function": function,
        "module": "/usr/bin/leaky",
        "location": "/src/leaky.c:23",
        "live_bytes": 2_000_003,
        "live_count": 4_201,
        "allocated_bytes": 3_000_017,
        "allocated_count": 6_301,
        "growth_bytes_per_s": 7_919.5,
        "oldest_age_s": 193.0,
        "threads": (ThreadShare(4_711, "worker", 2_000_003, 4_201),),
        "stack": a_stack(),
        "truncated": None,
        "temporary_count": 1_009,
        "peak_live_bytes": 2_500_009,
        "verdict": Verdict.LEAK,
        "confidence": 0.83,
        "reason": "+23.0 KiB in 59s, steadily; 97% of old blocks still live",
        "leak_bytes_per_s": 6_007.5,
        "reachable": None,
    }
    return SiteReport(**{**fields, **changes})


def a_process(pid: int = 4_711, **changes: Any) -> ProcessSummary:
    fields = {
        "comm": "leaky",
        "exe": "/usr/bin/leaky",
        "live_bytes": 5_000_011,
        "live_count": 10_007,
        "attached_s": 211.0,
        "mode": "exact",
        "state": ProcessState.TRACED,
        "allocated_bytes": 7_000_003,
        "allocated_count": 15_013,
        "freed_count": 5_003,
        "unmatched_frees": 13,
        "growth_bytes_per_s": 8_009.0,
        "temporary_count": 2_003,
        "peak_live_bytes": 6_000_011,
    }
    return ProcessSummary(pid, **{**fields, **changes})


def a_supervised_process(pid: int = 4_711, **changes: Any) -> SupervisedProcess:
    fields = {
        "comm": "leaky",
        "mode": TracingMode.EXACT,
        "state": SupervisionState.REFUSED,
        "rule": "rule 2",
        "reason": "it is a Go program",
        "labels": ProcessLabels("shop", "/system.slice/shop.service", "shop.service"),
    }
    return SupervisedProcess(pid, **{**fields, **changes})


def a_traced_process(pid: int = 4_711, **changes: Any) -> ProcessRow:
    libc = "/lib/x86_64-linux-gnu/libc.so.6"
    fields = {
        "process": a_process(pid),
        "attach_method": "session",
        "sites": 17,
        "probes": (
            ProbedFunction("glibc", "malloc", FunctionRole.SIZE_FIRST, libc, 0x99E00, True),
            ProbedFunction("glibc", "free", FunctionRole.RELEASE, libc, 0x9A489, True),
        ),
        "losses": {"live_full": 0, "stack_full": 0},
        "probe_hits": 40_009,
        "load_percent": 0.41,
        "limited": "",
    }
    return ProcessRow(**{**fields, **changes})


def a_report(pid: int = 4_711, **changes: Any) -> LeakReport:
    fields = {"process": a_process(pid), "sites": (a_site(),), "losses": {"live_full": 0, "stack_full": 0}}
    return LeakReport(**{**fields, **changes})


def an_address_space(pid: int = 4_711, **changes: Any) -> AddressSpaceReport:
    fields = {
        "comm": "leaky",
        "attached_s": 211.0,
        "virtual_bytes": 307_003_392,
        "resident_bytes": 17_006_592,
        "swap_bytes": 0,
        "peak_resident_bytes": 19_001_344,
        "page_table_bytes": 90_112,
        "uses": (
            UseSummary(MemoryUse.HEAP, 3, 13_000_704, 11_001_856, 10_997_760, 0, 7_000_064, 5_001_216),
            UseSummary(MemoryUse.FILES, 29, 25_001_984, 6_004_736, 208_896, 0, 0, -12_288),
            UseSummary(MemoryUse.RESERVED, 2, 269_000_704, 0, 0, 0, 0, 0),
        ),
        "shares": MemoryShares(5_000_011, 1_048_576, 307_200, 6_001_845, 4_648_960, 0.7266),
        "jit_modules": (JitModule("Templates", 2_003, 1_300_021), JitModule("/srv/app.js", 7, 5_003)),
        "losses": {"event_full": 0, "mappings_left_out": 0},
        "bill": (
            BillLine(BillKind.HEAP_FREE, 9_000_448, 30_011.0, "2 arenas of glibc"),
            BillLine(BillKind.FILE, 8_006_144, 0.0),
        ),
        "growth_summary": "memory grows +29.3 KiB/s: 100% of it is freed memory that the allocator keeps",
    }
    return AddressSpaceReport(pid, **{**fields, **changes})


def a_group(group: str | None = "leak_here", **changes: Any) -> SiteGroup:
    fields = {
        "live_bytes": 3_000_017,
        "live_count": 4_211,
        "allocated_bytes": 4_000_037,
        "allocated_count": 5_003,
        "growth_bytes_per_s": 7_919.5,
        "sites": ("5d41402abc4b2a76", "7d793037a0760186"),
    }
    return SiteGroup(group, **{**fields, **changes})


def a_grouped_report(pid: int = 4_711, **changes: Any) -> GroupedReport:
    fields = {"process": a_process(pid), "groups": (a_group(),), "losses": {"live_full": 0}}
    return GroupedReport(**{**fields, **changes})


def a_block(address: int = 0x5555_5575_92A0, **changes: Any) -> BlockReport:
    fields = {"size_bytes": 1_048_576, "age_s": 193.0, "tid": 4_711, "comm": "worker"}
    return BlockReport(address, **{**fields, **changes})


def some_site_blocks(**changes: Any) -> SiteBlocks:
    fields = {
        "site": "5d41402abc4b2a76",
        "kind": AllocationKind.HEAP,
        "caller": a_frame("leak_here"),
        "live_bytes": 2_097_155,
        "live_count": 3,
        "blocks": (a_block(), a_block(0x5555_5585_92A0, age_s=61.5)),
        "left_out_count": 1,
        "stack": a_stack(),
        "truncated": None,
    }
    return SiteBlocks(**{**fields, **changes})


def a_blocks_report(pid: int = 4_711, **changes: Any) -> BlocksReport:
    fields = {
        "process": a_process(pid),
        "older_than_s": 60.0,
        "live_bytes": 2_097_178,
        "live_count": 5,
        "sites": (some_site_blocks(),),
        "left_out_sites": 2,
        "left_out_count": 3,
        "losses": {"live_full": 0, "stack_full": 0},
    }
    return BlocksReport(**{**fields, **changes})


def some_stats() -> DaemonStats:
    return DaemonStats("0.1.0", "session", 307.0, 311, 0.013, 19, 3, 2)


def a_watched_process(pid: int = 4711, **changes: Any) -> WatchedProcess:
    fields = {
        "pid": pid,
        "comm": "leaky",
        "mode": TracingMode.AUTO,
        "state": WatchState.PAUSED,
        "anonymous_bytes": 77_000_003,
        "growth_bytes_per_s": 3_001.0,
        "windows": 2,
        "next_look_s": 541.0,
        "reason": "",
    }
    return WatchedProcess(**{**fields, **changes})


def a_process_verdict(**changes: Any) -> ProcessVerdict:
    fields = {
        "verdict": Verdict.LEAK,
        "reason": "a call site leaks",
        "leak_bytes_per_s": 7_001.0,
        "memory_bytes_per_s": 7_919.0,
        "memory_bytes_per_s_low": 7_001.0,
        "memory_bytes_per_s_high": 9_001.0,
        "explained_share": 0.884,
        "limit": MemoryLimit(MemoryLimitKind.CGROUP, 190_000_048, 100_000_011),
        "limit_reached_s": 11_365.0,
    }
    return ProcessVerdict(**{**fields, **changes})


def a_snapshot(*processes: ProcessRow, sites: tuple[SiteReport, ...] = ()) -> MetricsSnapshot:
    traced = processes or (a_traced_process(),)
    return MetricsSnapshot(some_stats(), traced, {process.process.pid: sites for process in traced})


def a_scanned_site(**changes: Any) -> ScannedSite:
    fields = {
        "site": "5d41402abc4b2a76",
        "function": "leak_here",
        "module": "/usr/bin/leaky",
        "location": "/src/leaky.c:23",
        "reachable": False,
        "sums": ReachabilitySums(2_097_152, 2, 1_031, 1, 0, 0, 2_053, 2),
        "blocks": (
            ScannedBlock(0x5555_5575_92A0, 1_048_576, 193.0, 4_711, "worker", Reachability.DIRECTLY_LOST),
            ScannedBlock(0x5555_5585_92A0, 1_031, 61.5, 4_711, "worker", Reachability.INDIRECTLY_LOST),
        ),
        "left_out_count": 1,
        "stack": a_stack(),
        "truncated": None,
    }
    return ScannedSite(**{**fields, **changes})


def a_scan_report(pid: int = 4_711, **changes: Any) -> ScanReport:
    fields = {
        "process": a_process(pid),
        "older_than_s": 60.0,
        "method": ScanMethod.STOPPED,
        "stopped_s": 0.023,
        "took_s": 1.3,
        "read_bytes": 101 << 20,
        "caveats": (),
        "young_bytes": 2_003,
        "young_count": 3,
        "sums": ReachabilitySums(2_097_152, 2, 1_031, 1, 1_009, 1, 4_096_003, 9_001),
        "sites": (a_scanned_site(),),
        "suppressed": {},
        "known_heap_bytes": 3_000_017,
        "losses": {"live_full": 0},
    }
    return ScanReport(**{**fields, **changes})
