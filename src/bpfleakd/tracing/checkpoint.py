"""What is written down for the next daemon, as bytes: any value of plain dataclasses."""

from __future__ import annotations

import json
from typing import Any, Protocol, TypeVar

import msgspec

__all__ = ["CheckpointBlob", "read_checkpoint", "write_checkpoint"]

T = TypeVar("T")

# Of an object in JSON; in msgpack it is the number 123.
_JSON_BEGIN = b"{"


class CheckpointBlob(Protocol):
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


def read_checkpoint(record: CheckpointBlob, kind: type[T]) -> T:
    """The value in a record. Raises ValueError if there is none of this kind."""
    text = record.read()
    if text is None:
        raise ValueError("there is no record")
    try:
        if text.startswith(_JSON_BEGIN):
            return msgspec.convert(json.loads(text), kind, str_keys=True)
        return msgspec.msgpack.decode(text, type=kind)
    except ValueError as error:  # MsgspecError is one
        raise ValueError(f"the record cannot be read: {error}") from error


def write_checkpoint(record: CheckpointBlob, value: Any) -> None:
    """Write a value down. Raises OSError."""
    try:
        text = msgspec.msgpack.encode(value)
    except UnicodeEncodeError:
        # Names that are no UTF-8 are texts with surrogates here (PEP 383), which JSON can escape.
        text = json.dumps(msgspec.to_builtins(value, str_keys=True)).encode()
    record.write(text)
