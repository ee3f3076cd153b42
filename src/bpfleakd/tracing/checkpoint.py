"""Data for the next daemon as bytes: any value of plain classes."""

from __future__ import annotations

import json
from typing import Any, TypeVar

import msgspec
import structlog

from bpfleakd.kernel.blob import Blob
from bpfleakd.kernel.pins import ProcessPins
from bpfleakd.model.process import TracingRequest

log = structlog.get_logger()

_REQUEST = "request"

T = TypeVar("T")

# The beginning of an object in JSON; in msgpack it is the number 123.
_JSON_BEGIN = b"{"


def read_checkpoint(record: Blob, kind: type[T]) -> T:
    """The value in a record. Raises ValueError if it has no value of this kind."""
    text = record.read()
    if text is None:
        raise ValueError("there is no record")
    try:
        if text.startswith(_JSON_BEGIN):
            return msgspec.convert(json.loads(text), kind, str_keys=True)
        return msgspec.msgpack.decode(text, type=kind)
    except ValueError as error:  # MsgspecError is one
        raise ValueError(f"the record cannot be read: {error}") from error


def write_checkpoint(record: Blob, value: Any) -> None:
    """Store a value. Raises OSError."""
    try:
        text = msgspec.msgpack.encode(value)
    except UnicodeEncodeError:
        # Names that are not UTF-8 are texts with surrogates here (PEP 383), which JSON can escape.
        text = json.dumps(msgspec.to_builtins(value, str_keys=True)).encode()
    record.write(text)


def write_if_possible(pins: ProcessPins, name: str, value: Any) -> None:
    """Store a value with the pins of a process, if the kernel has room for it."""
    record = pins.record(name)
    try:
        write_checkpoint(record, value)
    except OSError as error:
        log.warning("process.no-checkpoint", pid=pins.id.pid, checkpoint=name, reason=error.strerror)
    finally:
        record.close()


def write_request(pins: ProcessPins, request: TracingRequest) -> None:
    """Store how to trace a process, for the next daemon of any version."""
    write_if_possible(pins, _REQUEST, request)


def read_request(pins: ProcessPins) -> TracingRequest:
    """How an earlier daemon traced a process; the default request without a record."""
    record = pins.record(_REQUEST)
    try:
        return read_checkpoint(record, TracingRequest)
    except (ValueError, OSError):
        return TracingRequest()
    finally:
        record.close()
