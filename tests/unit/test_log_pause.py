"""Log lines that one process could repeat forever."""

from __future__ import annotations

from bpfleakd.log_pause import LogPause


def test_the_first_line_and_one_after_each_pause() -> None:
    """However many there are meanwhile; the clock may have begun at any time."""
    pause = LogPause(600)
    assert [at_ns for at_ns in (-9_000, -8_999, -8_401, -8_400, 5, 604, 605) if pause.take(at_ns)] == [
        -9_000,
        -8_400,
        5,
        605,
    ]
