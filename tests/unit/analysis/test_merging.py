"""Sites with one fingerprint as one."""

from __future__ import annotations

from bpfleakd.analysis.merging import merged_sites
from bpfleakd.model.site import AllocationKind, ThreadShare

from ..samples import a_site


def test_threads_and_counts_add_up() -> None:
    """Of each thread bytes and blocks; of temporary blocks and peaks the sums."""
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
