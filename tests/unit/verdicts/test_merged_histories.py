"""Sites that are one have one history."""

from __future__ import annotations

import numpy as np
from bench import simulated_sites as sites

from bpfleakd.model.verdict import Verdict
from bpfleakd.verdicts.measurement import persistence_of
from bpfleakd.verdicts.merged_histories import Units, summed
from bpfleakd.verdicts.site_verdict import Context, classify_sites


def moving(from_s: float, to_s: float) -> sites.Make:
    """A leak that takes this path between two times: a JIT compiles the method again."""

    def make(random: sites.Random, until_s: float) -> sites.Blocks:
        blocks = sites.leak(20)(random, until_s)
        here = (blocks.born_s >= from_s) & (blocks.born_s < to_s)
        return sites.Blocks(
            *(getattr(blocks, name)[here] for name in ("born_s", "life_s", "size_bytes", "weight"))
        )

    return make


def test_rows_with_equal_labels_are_one() -> None:
    """The first row stands for them; without any there is nothing to say."""
    units = Units.of({0: "a", 2: "b", 3: "a", 9: "b"}, 5)
    assert units is not None
    assert units.lead.tolist() == [0, 1, 2, 0, 4]
    members, starts = units.members(np.array([0, 2]))
    assert (members.tolist(), starts.tolist()) == ([0, 3, 2], [0, 2])
    assert units.latest(np.array([1, 2, 3, 7, 5])).tolist() == [7, 2, 3, 7, 5]
    assert Units.of({0: "a", 1: "b"}, 5) is None


def test_a_leak_that_moves_to_another_stack_is_one() -> None:
    """None of three paths is a leak by itself; their sum is, at the rate of all of them."""
    random = np.random.default_rng(23)
    paths = [moving(0, 40), moving(40, 80), moving(80, 120)]
    (histories,) = sites.histories_at([make(random, 120.0) for make in paths], [120.0])
    alone = classify_sites(persistence_of(histories), Context())
    assert Verdict.LEAK not in [alone.of(site).verdict for site in range(3)]
    together = classify_sites(persistence_of(summed(histories, np.array([0]))), Context()).of(0)
    assert together.verdict is Verdict.LEAK
    assert 20 * 128 * 0.9 < together.leak_bytes_per_s < 20 * 128 * 1.1
