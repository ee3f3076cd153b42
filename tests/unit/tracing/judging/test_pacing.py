"""How long verdicts wait: a part of what was observed, and longer while the memory stays the same."""

from __future__ import annotations

import pytest

from bpfleakd.tracing.judging.pacing import VerdictPacing

S = 1_000_000_000
MB = 1 << 20
EVALUATED_S = 10 * 3600


def evaluated(memory_bytes: int | None, *, is_unconfirmed: bool = False) -> VerdictPacing:
    """A process observed for ten hours, evaluated just now at no cost."""
    pacing = VerdictPacing(first_leak_s=30.0, spent_ns=lambda: 0)
    pacing.note_memory(memory_bytes)
    pacing.begin(EVALUATED_S * S)
    pacing.end(is_unconfirmed=is_unconfirmed)
    return pacing


def pause_s(pacing: VerdictPacing, memory_bytes: int | None, *, asked: bool = False) -> int:
    """After how many seconds the next evaluation is due."""
    pacing.note_memory(memory_bytes)
    for after_s in range(1000):
        if pacing.is_due((EVALUATED_S + after_s) * S, 0, asked=asked):
            return after_s
    raise AssertionError("never")


@pytest.mark.parametrize(
    ("before", "now", "expected_s"),
    [
        (500 * MB, 500 * MB, 300),
        (500 * MB, 509 * MB, 300),
        (500 * MB, 511 * MB, 30),
        (500 * MB, 489 * MB, 30),
        (10 * MB, 11 * MB, 300),
        (10 * MB, 12 * MB, 30),
        (None, 500 * MB, 30),
        (500 * MB, None, 30),
    ],
)
def test_memory_that_stays_the_same_is_judged_less_often(
    before: int | None, now: int | None, expected_s: int
) -> None:
    """Unknown memory proves nothing."""
    assert pause_s(evaluated(before), now) == expected_s


def test_a_question_is_answered_anew() -> None:
    """Whether the memory has changed or not."""
    assert pause_s(evaluated(500 * MB), 500 * MB, asked=True) == 1


def test_a_leak_is_confirmed_soon() -> None:
    """Though the memory stays the same."""
    assert pause_s(evaluated(500 * MB, is_unconfirmed=True), 500 * MB) == 30


def test_a_process_that_was_observed_for_a_short_time_is_judged_as_often_as_ever() -> None:
    """A pause is a small part of that."""
    pacing = VerdictPacing(first_leak_s=30.0, spent_ns=lambda: 0)
    pacing.note_memory(500 * MB)
    pacing.begin(600 * S)
    pacing.end()
    assert not pacing.is_due(624 * S, 0)
    assert pacing.is_due(627 * S, 0)
