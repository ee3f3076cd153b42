"""What this machine can do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Check", "CheckStatus"]


class CheckStatus(StrEnum):
    """The outcome of a check of this machine."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that this machine has or lacks; `way_out` is what to do about it, "" if nothing."""

    name: str
    status: CheckStatus
    detail: str
    way_out: str = ""
