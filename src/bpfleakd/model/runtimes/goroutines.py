"""The goroutines of a Go program."""

from __future__ import annotations

from msgspec import Struct

from bpfleakd.model.verdict import Verdict


class GoroutineGroup(Struct, frozen=True):
    """Goroutines that were started at the same place.

    `function` is their first function, `started_in` the function with the `go` statement at `started_at`
    (file:line). `states` counts them by what they wait for or do. Their number grew by `grown_count` within
    `grown_in_s`. `stack_bytes` is the memory of their stacks. `verdict` is on their number, `reason` its
    reason in words.
    """

    function: str | None
    started_in: str | None
    started_at: str | None
    count: int
    states: dict[str, int]
    stack_bytes: int
    grown_count: int
    grown_in_s: float
    verdict: Verdict
    confidence: float
    reason: str
