"""Sites with one fingerprint as one."""

from __future__ import annotations

from bpfleakd.analysis.merging import merged_sites
from bpfleakd.model.site import AllocationKind, ThreadShare
from bpfleakd.model.verdict import Verdict

from ..samples import a_site


def test_threads_and_counts_add_up() -> None:
    """Bytes and blocks of each thread; the sums of temporary blocks and peaks."""
    one = a_site(threads=(ThreadShare(1, "a", 5, 1), ThreadShare(2, "b", 7, 2)), temporary_count=3)
    other = a_site(threads=(ThreadShare(2, "b", 100, 10),), temporary_count=4, peak_live_bytes=11)
    (site,) = merged_sites([one, other])
    assert site.threads == (ThreadShare(2, "b", 107, 12), ThreadShare(1, "a", 5, 1))
    assert (site.temporary_count, site.peak_live_bytes) == (7, one.peak_live_bytes + 11)


def test_what_is_not_known_stays_so() -> None:
    """Nobody can tell of mappings whether they were temporary."""
    mapping = a_site(kind=AllocationKind.MMAP, temporary_count=None)
    (site,) = merged_sites([mapping, mapping])
    assert site.temporary_count is None


def test_what_a_scan_has_found_of_both() -> None:
    """One that is reachable and one that is lost are neither; the older look counts."""
    one = a_site(reachable=True, scanned_age_s=7.0)
    (site,) = merged_sites([one, a_site(reachable=False, scanned_age_s=23.0)])
    assert (site.reachable, site.scanned_age_s) == (None, 23.0)
    (site,) = merged_sites([one, a_site(reachable=True, scanned_age_s=None)])
    assert (site.reachable, site.scanned_age_s) == (True, 7.0)


def test_the_reason_is_that_of_the_sum() -> None:
    """The number of freed blocks covers all of them, also if both halves give the same reason."""
    freed = a_site(
        verdict=Verdict.CHURN, reason="all 1 blocks were freed again", live_count=0, allocated_count=1
    )
    (site,) = merged_sites([freed, freed, freed])
    assert (site.reason, site.allocated_count) == ("all 3 blocks were freed again", 3)
    held = a_site(verdict=Verdict.STEADY, reason="nothing allocated for 59s", live_count=2, allocated_count=2)
    (site,) = merged_sites([held, freed])
    assert (site.verdict, site.reason) == (Verdict.CHURN, "1 of 3 blocks were freed again")
    partly = a_site(
        verdict=Verdict.CHURN, reason="1 of 2 blocks were freed again", live_count=1, allocated_count=2
    )
    (site,) = merged_sites([partly, partly])
    assert site.reason == "2 of 4 blocks were freed again"


def test_a_reason_that_is_of_one_half_only() -> None:
    """It stays unchanged if both were judged together; otherwise it is marked as that of a part."""
    leak = a_site(verdict=Verdict.LEAK, reason="+23.0 KiB in 59s, steadily")
    assert merged_sites([leak, leak])[0].reason == leak.reason
    other = a_site(verdict=Verdict.STEADY, reason="nothing allocated for 59s")
    (site,) = merged_sites([other, leak, other])
    assert (site.verdict, site.reason) == (Verdict.LEAK, f"{leak.reason} (of a part of its blocks)")
    churn = a_site(
        verdict=Verdict.CHURN, reason="120 blocks in 30s come and go", live_count=7, allocated_count=23
    )
    assert merged_sites([churn, churn])[0].reason == churn.reason
