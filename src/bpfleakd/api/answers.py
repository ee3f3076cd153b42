"""Answers in JSON, errors among them, each with a fitting status."""

from __future__ import annotations

from http import HTTPStatus

import msgspec
from starlette.responses import Response

from bpfleakd import errors
from bpfleakd.api.parameters import BadRequest
from bpfleakd.printable import without_surrogates

__all__ = ["error_answer", "json_answer", "status_of"]

# The status of an error class holds for its subclasses, unless they have their own.
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
    """An error as docs/json.md has it."""
    return json_answer({"error": {"code": code, "message": message, "hint": hint}}, status)


def json_answer(answer: object, status: int = HTTPStatus.OK) -> Response:
    """Any value of the model in JSON."""
    try:
        body = msgspec.json.encode(answer)
    except UnicodeEncodeError:
        # A name with bytes that are no UTF-8 (as Python's surrogates); JSON cannot carry them.
        body = msgspec.json.encode(without_surrogates(msgspec.to_builtins(answer)))
    return Response(body, status, {"cache-control": "no-store"}, media_type="application/json")
