"""Answers in JSON, including errors, with their HTTP status."""

from __future__ import annotations

from http import HTTPStatus

import msgspec
from msgspec.structs import fields

from bpfleakd import errors
from bpfleakd.api.messages import Response
from bpfleakd.api.parameters import BadRequest
from bpfleakd.printable import without_surrogates

# The status of an error class applies to its subclasses, unless they have their own.
_STATUS: dict[type[errors.BpfleakdError], HTTPStatus] = {
    errors.BpfleakdError: HTTPStatus.INTERNAL_SERVER_ERROR,
    errors.DaemonUnreachable: HTTPStatus.SERVICE_UNAVAILABLE,  # it is still starting
    errors.AccessDenied: HTTPStatus.FORBIDDEN,
    errors.TargetError: HTTPStatus.UNPROCESSABLE_ENTITY,
    errors.NoSuchProcess: HTTPStatus.NOT_FOUND,
    errors.NotAttached: HTTPStatus.NOT_FOUND,
    errors.NoSuchSite: HTTPStatus.NOT_FOUND,
    errors.NoSuchTime: HTTPStatus.NOT_FOUND,
    errors.NoSuchReport: HTTPStatus.NOT_FOUND,
    errors.AlreadyRunning: HTTPStatus.CONFLICT,
    errors.NotYet: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.AlreadyAttached: HTTPStatus.CONFLICT,
    errors.KernelUnsupported: HTTPStatus.NOT_IMPLEMENTED,
    errors.CapacityError: HTTPStatus.SERVICE_UNAVAILABLE,
}


def status_of(error: errors.BpfleakdError) -> HTTPStatus:
    """The HTTP status of an error."""
    if isinstance(error, BadRequest):
        return HTTPStatus.BAD_REQUEST
    return next(_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS)


def error_answer(status: int, code: str, message: str, hint: str = "") -> Response:
    """An error in the format of docs/json.md."""
    return json_answer({"error": {"code": code, "message": message, "hint": hint}}, status)


def json_answer(answer: object, status: int = HTTPStatus.OK) -> Response:
    """Any value of the model in JSON."""
    headers = {"cache-control": "no-store", "content-type": "application/json"}
    return Response(_json(answer), status, headers)


def _json(answer: object) -> bytes:
    """Encode a report and its lists item by item: msgspec holds Python's lock until it returns."""
    if isinstance(answer, msgspec.Struct):
        members = ((field.name, getattr(answer, field.name)) for field in fields(answer))
        return b"{%b}" % b",".join(b'"%b":%b' % (name.encode(), _json(value)) for name, value in members)
    if isinstance(answer, tuple):
        return b"[%b]" % b",".join(map(_encoded, answer))
    return _encoded(answer)


def _encoded(value: object) -> bytes:
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        # A name has bytes that are not UTF-8 (surrogates in Python), which JSON cannot contain.
        return msgspec.json.encode(without_surrogates(msgspec.to_builtins(value)))
