"""What can be wrong with call frame information."""

from __future__ import annotations

from enum import StrEnum


class SkipReason(StrEnum):
    """Why a frame description entry (FDE), or the rest of one, is not in the table."""

    TRUNCATED = "truncated"
    BAD_CIE = "bad-cie"
    BAD_POINTER = "bad-pointer"
    BAD_INSTRUCTION = "bad-instruction"
    EMPTY = "empty"
    OUTSIDE_TEXT = "outside-text"
    OVERLAP = "overlap"
    LIMIT = "limit"


class MalformedCfi(Exception):
    """An entry cannot be understood. Never leaves this package."""

    def __init__(self, reason: SkipReason) -> None:
        super().__init__(reason.value)
        self.reason = reason
