"""From arrays of blocks to a report in names; the child process is another test's."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from bpfleakd.analysis.suppressions import Suppressions, parse_suppressions
from bpfleakd.kernel.abi import LIVE_BLOCK, LOSS_REASONS
from bpfleakd.model.code.stack import NamedStack, RawStack, StackEnd
from bpfleakd.model.scan import Reachability, ReachabilitySums, ScanCaveat, ScanMethod, ScanReport
from bpfleakd.model.site import AllocationKind, SiteKey
from bpfleakd.queries.report import Reporter
from bpfleakd.queries.scan_reply import ScanReply, ScanRequest, reply_of
from bpfleakd.queries.scans import ScanOptions, reachable_sites, scan_report
from bpfleakd.reachability.classification import KINDS

from ..tracing.doubles import NS_PER_S, FakeMaps, FakeProcess, View, a_traced

PID = 4_711
NOW_NS = 1_000 * NS_PER_S
DIRECT, INDIRECT = Reachability.DIRECTLY_LOST, Reachability.INDIRECTLY_LOST
POSSIBLE, REACHABLE = Reachability.POSSIBLY_LOST, Reachability.STILL_REACHABLE

# (size, seconds ago, stack, kind) of blocks at 0x1000, 0x2000, …
Block = tuple[int, float, int, Reachability]


def a_reply(
    *blocks: Block, older_than_s: float = 0.0, limit: int = 100, caveats: Iterable[ScanCaveat] = ()
) -> ScanReply:
    request = ScanRequest(PID, 8_009, -1, older_than_s, True, 0.2, [], limit)
    records = np.array(
        [
            (size, max(size, 1), NOW_NS - round(ago * NS_PER_S), stack, 7, 0)
            for size, ago, stack, _kind in blocks
        ],
        LIVE_BLOCK,
    )
    return reply_of(
        request,
        np.arange(1, len(blocks) + 1, dtype=np.uint64) * np.uint64(0x1000),
        records,
        np.array([KINDS.index(kind) for *_rest, kind in blocks], np.uint8),
        now_ns=NOW_NS,
        method=ScanMethod.STOPPED,
        caveats=list(caveats),
        stopped_s=0.023,
        took_s=1.25,
        read_bytes=1_000_003,
    )


def a_report(
    reply: ScanReply,
    *,
    same: frozenset[int] = frozenset(),
    losses: dict[str, int] | None = None,
    suppressions: Suppressions | None = None,
) -> ScanReport:
    """Stack n has one frame, address n; those in `same` have one fingerprint."""
    maps = FakeMaps()
    maps.processes[PID] = FakeProcess(stacks={n: RawStack((n,), StackEnd.BOTTOM) for n in range(1, 2_000)})
    traced = a_traced(now_ns=NOW_NS)
    traced.thread_names = {7: "main"}
    traced.counters.losses.update(losses or {})

    def name(keys: Iterable[SiteKey]) -> dict[SiteKey, NamedStack]:
        named = traced.named_stacks(maps, keys, NOW_NS)  # type: ignore[arg-type]
        return {
            key: NamedStack(one.stack, "the same", True) if key.stack_id in same else one
            for key, one in named.items()
        }

    options = ScanOptions(0.0, True, 0.2, 100, suppressions or Suppressions())
    process = Reporter(10, "session").summary(traced, NOW_NS)
    return scan_report(View(traced, names=name), options, reply, process)  # type: ignore[arg-type]


def test_sums_by_site_and_kind() -> None:
    """Those that lose most first; those that lose nothing are only in the sums of the process."""
    report = a_report(
        a_reply(
            (101, 9, 1, DIRECT),
            (103, 9, 1, REACHABLE),
            (107, 9, 2, INDIRECT),
            (109, 9, 2, DIRECT),
            (113, 9, 3, REACHABLE),
            (127, 9, 4, POSSIBLE),
        )
    )
    assert report.sums == ReachabilitySums(210, 2, 107, 1, 127, 1, 216, 2)
    assert [(site.function, site.reachable) for site in report.sites] == [
        ("function_2", False),
        ("function_1", None),
        ("function_4", True),
    ]
    assert report.sites[0].sums == ReachabilitySums(109, 1, 107, 1, 0, 0, 0, 0)
    assert (report.stopped_s, report.took_s, report.read_bytes) == (0.023, 1.25, 1_000_003)


def test_blocks_that_are_lost() -> None:
    """With address, age, thread and kind, oldest first; reachable ones are not listed."""
    (site,) = a_report(a_reply((101, 5, 1, INDIRECT), (103, 7, 1, REACHABLE), (107, 9, 1, DIRECT))).sites
    assert [(block.address, block.size_bytes, block.age_s, block.reachability) for block in site.blocks] == [
        (0x3000, 107, 9.0, DIRECT),
        (0x1000, 101, 5.0, INDIRECT),
    ]
    assert {(block.tid, block.comm) for block in site.blocks} == {(7, "main")}
    assert site.left_out_count == 0


def test_more_blocks_than_are_listed() -> None:
    """Counted; and none if none are requested."""
    blocks = [(101, 9, 1, DIRECT)] * 5
    (site,) = a_report(a_reply(*blocks, limit=3)).sites
    assert (len(site.blocks), site.left_out_count) == (3, 2)
    (site,) = a_report(a_reply(*blocks, limit=0)).sites
    assert (len(site.blocks), site.left_out_count) == (0, 5)


def test_young_blocks_are_not_judged() -> None:
    """They are in no sum but their own."""
    report = a_report(a_reply((101, 59, 1, DIRECT), (103, 60, 2, DIRECT), older_than_s=60))
    assert (report.young_bytes, report.young_count) == (101, 1)
    assert report.sums == ReachabilitySums(directly_lost_bytes=103, directly_lost_count=1)


def test_no_blocks_at_all() -> None:
    """Nothing was allocated since the attach."""
    report = a_report(a_reply())
    assert (report.sums, report.sites) == (ReachabilitySums(), ())


def test_stacks_with_one_fingerprint_are_one_site() -> None:
    """Their blocks are together, oldest first."""
    reply = a_reply((101, 5, 1, DIRECT), (103, 9, 2, INDIRECT), (500, 9, 2, REACHABLE))
    (site,) = a_report(reply, same=frozenset({1, 2})).sites
    assert site.sums == ReachabilitySums(101, 1, 103, 1, 0, 0, 500, 1)
    assert [block.size_bytes for block in site.blocks] == [103, 101]
    assert site.reachable is None


def test_what_the_call_sites_are_told() -> None:
    """True, false, or undecided, for sites that have blocks of that age."""
    reply = a_reply(
        (1, 99, 1, REACHABLE),
        (1, 99, 2, DIRECT),
        (1, 99, 3, DIRECT),
        (3, 99, 3, REACHABLE),
        (1, 9, 4, DIRECT),
        older_than_s=60,
    )
    answers = {key.stack_id: reachable for key, reachable in reachable_sites(reply).items()}
    assert answers == {1: True, 2: False, 3: None}
    assert {key.kind for key in reachable_sites(reply)} == {AllocationKind.HEAP}


def test_suppressed_sites_are_counted() -> None:
    """Not listed, but in the sums, and by their pattern."""
    suppressions = parse_suppressions("leak:function_1$\nleak:^function_[", "mine")
    reply = a_reply((101, 5, 1, DIRECT), (103, 5, 2, DIRECT), (107, 5, 1, REACHABLE))
    report = a_report(reply, suppressions=suppressions)
    assert [site.function for site in report.sites] == ["function_2"]
    assert report.suppressed == {"function_1$": ReachabilitySums(101, 1, 0, 0, 0, 0, 107, 1)}
    assert report.sums.directly_lost_bytes == 204


def test_caveats() -> None:
    """Those of the child, and blocks that were missed, whatever the reason."""
    assert a_report(a_reply(caveats=[ScanCaveat.NOT_STOPPED])).caveats == (ScanCaveat.NOT_STOPPED,)
    assert a_report(a_reply(), losses={"live_full": 1}).caveats == (ScanCaveat.BLOCKS_MISSED,)
    harmless = dict.fromkeys(LOSS_REASONS, 0) | {"stack_full": 1, "event_full": 1}
    assert a_report(a_reply(), losses=harmless).caveats == ()


def test_thousands_of_sites_that_lose_memory() -> None:
    """Naming all of them would take long; the sums have them."""
    report = a_report(a_reply(*((n, 9, n, DIRECT) for n in range(1, 1_500))))
    assert (len(report.sites), report.sums.directly_lost_count) == (1_000, 1_499)
    assert report.sites[0].function == "function_1499"
