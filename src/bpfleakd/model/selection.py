"""The processes that a user selects without a PID."""

from __future__ import annotations

from msgspec import Struct


class ProcessSelection(Struct, frozen=True):
    """What all selected processes have in common; None accepts anything.

    `name` and `unit` are shell patterns, as in the policy: of the process' short name or the file name of its
    executable, and of its systemd unit, where ".service" may be left out. `container` is the beginning of the
    container's id.
    """

    name: str | None = None
    unit: str | None = None
    container: str | None = None

    @property
    def words(self) -> str:
        """The selection in a few words, for messages."""
        given = (("name", self.name), ("unit", self.unit), ("container", self.container))
        return ", ".join(f"{what} {text!r}" for what, text in given if text is not None)
