"""The pane of one call site."""

from __future__ import annotations

import pytest

from bpfleakd.cli.live.detail import detail_lines

from ...samples import a_site


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({"reachable": None, "scanned_age_s": None}, "not scanned"),
        ({"reachable": True, "scanned_age_s": 23.0}, "still reachable (scan 23s ago)"),
        ({"reachable": False, "scanned_age_s": 7.0}, "lost: nothing points to it any more (scan 7s ago)"),
        ({"reachable": None, "scanned_age_s": 90.0}, "partly lost (scan 1m30s ago)"),
    ],
)
def test_reachability_and_the_age_of_the_scan(found, words):
    """A result from an hour ago may be outdated."""
    lines = [line.plain for line in detail_lines(a_site(**found), None, 100)]
    assert f"memory     heap; {words}" in lines
