"""Open descriptors that the programs did not record: those of before, and those that came another way.

A descriptor may be received over a socket (SCM_RIGHTS), opened by io_uring, taken from another process
(pidfd_getfd), or made by an ioctl. What is open and not recorded is one of these, unless it was there when
the recording began. So both are told apart by their numbers: one that was there at first, and has never been
missing since, is of before.

A descriptor that was opened or closed while the table and /proc/PID/fd were read may look like one of these.
So one counts once it was found by several looks in a row.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

__all__ = ["UnrecordedDescriptors"]

_LOOKS = 3


class UnrecordedDescriptors:
    """Those of a process, since its descriptors are recorded. `others` are the numbers of the later ones."""

    def __init__(self) -> None:
        self._earlier: NDArray[np.uint64] | None = None
        self._looks: deque[NDArray[np.uint64]] = deque(maxlen=_LOOKS)
        self.others: NDArray[np.uint64] = np.zeros(0, np.uint64)

    @property
    def earlier_count(self) -> int:
        """How many have been open since before the first look."""
        return 0 if self._earlier is None else len(self._earlier)

    def look(self, open_now: NDArray[np.uint64], recorded: NDArray[np.uint64]) -> None:
        """Take in the numbers that are open, and those of them, at least, that are recorded."""
        unrecorded = np.setdiff1d(open_now, recorded)
        earlier = unrecorded if self._earlier is None else np.intersect1d(self._earlier, unrecorded)
        self._earlier = earlier
        self._looks.append(np.setdiff1d(unrecorded, earlier, assume_unique=True))
        if len(self._looks) == _LOOKS:
            others = self._looks[0]
            for later in list(self._looks)[1:]:
                others = np.intersect1d(others, later, assume_unique=True)
            self.others = others
