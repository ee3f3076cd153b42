"""Open descriptors that the programs did not record: earlier ones, and those that came another way.

A descriptor may be received over a socket (SCM_RIGHTS), opened by io_uring, taken from another process
(pidfd_getfd), or created by an ioctl. An open and unrecorded descriptor is one of these, unless it existed
when the recording began. The numbers distinguish the two: a descriptor that existed at first, and has never
been missing since, is an earlier one.

A descriptor that was opened or closed while the table and /proc/PID/fd were read may look like one of these.
So a descriptor counts only after several looks in a row have found it.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

_LOOKS = 3


class UnrecordedDescriptors:
    """The unrecorded descriptors of a process. `others` are the numbers of the later ones."""

    def __init__(self) -> None:
        self._earlier: NDArray[np.uint64] | None = None
        self._looks: deque[NDArray[np.uint64]] = deque(maxlen=_LOOKS)
        self.others: NDArray[np.uint64] = np.zeros(0, np.uint64)

    @property
    def earlier_count(self) -> int:
        """How many have been open since before the first look."""
        return 0 if self._earlier is None else len(self._earlier)

    def look(self, open_now: NDArray[np.uint64], recorded: NDArray[np.uint64]) -> None:
        """Add a look: all open numbers, and at least those of them that are recorded."""
        unrecorded = np.setdiff1d(open_now, recorded)
        earlier = unrecorded if self._earlier is None else np.intersect1d(self._earlier, unrecorded)
        self._earlier = earlier
        self._looks.append(np.setdiff1d(unrecorded, earlier, assume_unique=True))
        if len(self._looks) == _LOOKS:
            others = self._looks[0]
            for later in list(self._looks)[1:]:
                others = np.intersect1d(others, later, assume_unique=True)
            self.others = others
