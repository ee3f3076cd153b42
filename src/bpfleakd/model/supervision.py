"""What bpfleakd does with each process of this host."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from bpfleakd.model.process import ProcessLabels, TracingMode


class SupervisionState(StrEnum):
    """What bpfleakd does with a process of this host.

    DECIDING: it has just started, or executed something. OFF: the policy excludes it. WATCHED: its memory is
    sampled from /proc. ATTACHING: about to be traced. TRACED. WAITING: it should be traced, but a limit was
    reached. REFUSED: it should be traced, but cannot be. DETACHED: a user detached it.
    """

    DECIDING = "deciding"
    OFF = "off"
    WATCHED = "watched"
    ATTACHING = "attaching"
    TRACED = "traced"
    WAITING = "waiting"
    REFUSED = "refused"
    DETACHED = "detached"


class SupervisedProcess(Struct, frozen=True):
    """A process of this host, the policy's decision, and what bpfleakd does with it.

    `rule` is what decided: "rule 2", "default", "manual", or what excludes it. `reason` explains the state,
    "" if it explains itself.
    """

    pid: int
    comm: str
    mode: TracingMode
    state: SupervisionState
    rule: str
    reason: str
    labels: ProcessLabels
