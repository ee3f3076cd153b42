"""What is written down for the next daemon, as bytes: any value of plain dataclasses."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

import msgspec

__all__ = ["Record", "read_record", "write_record"]

T = TypeVar("T")


class Record(Protocol):
    """Bytes that outlive the daemon (kernel/blob.py)."""

    def read(self) -> bytes | None:
        """The bytes; None if there are none."""
        ...

    def write(self, text: bytes) -> None:
        """Replace them. Raises OSError."""
        ...

    def remove(self) -> None:
        """Have none any more."""
        ...

    def close(self) -> None:
        """Let go of them, as they are."""
        ...


def read_record(record: Record, kind: type[T]) -> T:
    """The value in a record. Raises ValueError if there is none of this kind."""
    text = record.read()
    if text is None:
        raise ValueError("there is no record")
    try:
        return msgspec.msgpack.decode(text, type=kind)
    except msgspec.MsgspecError as error:
        raise ValueError(f"the record cannot be read: {error}") from error


def write_record(record: Record, value: Any) -> None:
    """Write a value down. Raises OSError."""
    record.write(msgspec.msgpack.encode(value))
