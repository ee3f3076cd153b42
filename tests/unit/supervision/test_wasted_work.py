"""Users whose processes end before they are attached to wait; other users do not."""

from __future__ import annotations

from bpfleakd.supervision.wasted_work import FACTOR, PAUSE_MAX_NS, WastedWork

MS = 1_000_000


def test_what_was_for_nothing_is_paid_by_its_user() -> None:
    """In proportion to the wasted time."""
    wasted = WastedWork()
    wasted.note(1000, 5 * MS, 25 * MS, wasted=True)
    assert wasted.until_ns(1000) == 25 * MS + FACTOR * 20 * MS
    assert wasted.until_ns(0) == 0
    assert wasted.until_ns(None) == 0


def test_a_pause_is_short_and_ends() -> None:
    """Also where an attach took very long; one that succeeds ends it."""
    wasted = WastedWork()
    wasted.note(1000, 0, 10 * PAUSE_MAX_NS, wasted=True)
    assert wasted.until_ns(1000) == 11 * PAUSE_MAX_NS
    wasted.note(1000, 0, MS, wasted=False)
    assert wasted.until_ns(1000) == 0


def test_users_are_bounded() -> None:
    """The oldest give way."""
    wasted = WastedWork()
    for uid in range(5000):
        wasted.note(uid, 0, MS, wasted=True)
    wasted.note(None, 0, MS, wasted=True)
    assert wasted.until_ns(0) == 0
    assert wasted.until_ns(4999)
