"""The entries of the map `probe_operands`, which hold the places of a static probe's arguments.

Rules:
- Processes share entries by content: all that run the same sampler need the same few.
- One process uses at most a part of the table; its further requests are refused.
- An entry without a process is free. Entries from before a restart of the daemon remain: existing probes
  refer to them, and the new daemon does not know which.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bpfleakd import errors

# A sampler has two or three probes, compiled into a file in a few places each.
OF_PROCESS_MAX = 16


class OperandTable:
    """The entries; those that are all zero are free. `write` puts content into one of them."""

    def __init__(self, entries: Sequence[bytes], write: Callable[[int, bytes], None]) -> None:
        self._entries = list(entries)
        self._write = write
        self._unknown = {number for number, content in enumerate(entries) if any(content)}
        self._users: dict[int, set[int]] = {}

    def number(self, pid: int, content: bytes) -> int:
        """The entry with that content, created if it is missing; the process uses it until `release`.

        Raises TargetRefused if the process has used its share, CapacityError if the table is full.
        """
        used = [number for number, users in self._users.items() if pid in users]
        known = next((number for number, entry in enumerate(self._entries) if entry == content), None)
        if known not in used and len(used) >= OF_PROCESS_MAX:
            raise errors.TargetRefused(
                f"the static probes of process {pid} pass their arguments in more than {OF_PROCESS_MAX} ways",
                "the samplers that are known need three; attach with --mode exact",
            )
        if known is None:
            known = self._free()
            self._write(known, content)
            self._entries[known] = content
        self._users.setdefault(known, set()).add(pid)
        return known

    def release(self, pid: int) -> None:
        """Release the entries of a process whose probes are gone."""
        for users in self._users.values():
            users.discard(pid)

    def _free(self) -> int:
        for number in range(len(self._entries)):
            if number not in self._unknown and not self._users.get(number):
                return number
        raise errors.CapacityError("no room for more kinds of static probes", "restart the daemon")
