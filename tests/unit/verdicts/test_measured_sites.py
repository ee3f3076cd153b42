"""Which sites must be measured, and the verdicts on the others meanwhile."""

from __future__ import annotations

import numpy as np
from msgspec.structs import fields

from bpfleakd.verdicts.measured_sites import MeasuredSites
from bpfleakd.verdicts.persistence import Persistence

ROWS = np.arange(4)


def measured(count: int, **columns: object) -> Persistence:
    names = [field.name for field in fields(Persistence)]
    flags = {"is_heap", "persists", "by_survivors", "by_blocks", "dies", "grows", "stopped", "slows"}
    known = {name: np.zeros(count, bool if name in flags else float) for name in names}
    known |= {name: np.array(column) for name, column in columns.items()}
    return Persistence(**{**known, "observed_s": 80.0, "leak_after_s": 45.0})


def due(sites: MeasuredSites, now_s: float, changed_s: list[float] | None = None) -> list[int]:
    changed = np.array(changed_s or [1.0] * len(ROWS))
    return sites.due(ROWS, changed, now_s).tolist()


def test_all_are_measured_once_and_again_when_they_changed():
    """And all, when the recording is an eighth longer than when they were measured."""
    sites = MeasuredSites()
    assert due(sites, 80) == [0, 1, 2, 3]
    sites.keep(ROWS, measured(4), 80)
    assert due(sites, 85) == []
    assert due(sites, 85, [1, 83, 1, 80]) == [1]
    sites.keep(ROWS[1:2], measured(1), 85)
    assert due(sites, 90) == [0, 2, 3]
    assert due(sites, 96) == [0, 1, 2, 3]


def test_what_grows_or_persists_is_measured_every_time():
    """An end of the growth must be noticed."""
    sites = MeasuredSites()
    flags = {"persists": [True, False, False, False], "grows": [False, True, True, False]}
    sites.keep(ROWS[:0], measured(0), 0)
    assert due(sites, 80) == [0, 1, 2, 3]
    sites.keep(ROWS, measured(4, steps=[0.0, 2.0, 1.0, 9.0], **flags), 80)
    assert due(sites, 81) == [0, 1]


def test_silence_goes_on():
    """The rest is unchanged; rows can come later, and in any order."""
    sites = MeasuredSites()
    sites.due(ROWS[:2], np.ones(2), 80)
    sites.keep(ROWS[:2], measured(2, quiet_s=[7.0, 3.0], silence_s=[1.0, 2.0], steps=[5.0, 6.0]), 80)
    sites.due(ROWS, np.ones(4), 84)
    sites.keep(ROWS[3:], measured(1, quiet_s=[11.0]), 84)
    known = sites.of(np.array([3, 0]), 85, 45.0)
    assert (known.observed_s, known.leak_after_s) == (85, 45)
    assert (known.quiet_s.tolist(), known.silence_s.tolist()) == ([12, 12], [1, 6])
    assert known.steps.tolist() == [0, 5]
