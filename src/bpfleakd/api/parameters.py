"""The parameters of a request, checked; an invalid one is a BadRequest."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeVar

from bpfleakd import errors
from bpfleakd.api.messages import Request
from bpfleakd.api.service import PATTERN_CHARS
from bpfleakd.export.stack_values import StackValue
from bpfleakd.model.groups import GroupKey
from bpfleakd.model.process import TracingMode
from bpfleakd.model.report import SortKey
from bpfleakd.printable import printable

_Choice = TypeVar("_Choice", GroupKey, SortKey, StackValue, TracingMode)

PID_MAX = 4_194_304  # PID_MAX_LIMIT of a 64-bit kernel


class BadRequest(errors.BpfleakdError):
    """A parameter that cannot be used."""

    code = "bad-request"


def only_parameters(request: Request, *known: str) -> None:
    """Raise BadRequest for any other parameter, and for one that appears twice."""
    for name in request.query:
        if name not in known:
            hint = f"known here: {', '.join(known)}" if known else "no parameters are allowed here"
            raise BadRequest(f"unknown parameter {printable(name)!r}", hint)
        if name in request.repeated:
            raise BadRequest(f"parameter {name} appears more than once")


def pid_of(request: Request) -> int:
    """The pid in the path."""
    return whole_number("a pid", request.path_params["pid"], 1, PID_MAX)


def limit_of(request: Request, highest: int = 1_000_000, *, lowest: int = 1) -> int | None:
    """The parameter `limit`; None if it is not given."""
    text = request.query.get("limit")
    return None if text is None else whole_number("limit", text, lowest, highest)


def choice(
    request: Request, name: str, otherwise: _Choice, choices: Sequence[_Choice] | None = None
) -> _Choice:
    """One of `choices`, by default of all values of `otherwise`'s class."""
    possible = tuple(type(otherwise)) if choices is None else choices
    text = request.query.get(name, otherwise.value)
    for each in possible:
        if text == each.value:
            return each
    raise BadRequest(f"{name} must be one of {', '.join(possible)}, not {printable(text)!r}")


def site_of(request: Request) -> str | None:
    """The parameter `site`, the fingerprint of a call site; None if it is not given."""
    text = request.query.get("site")
    if text is None or re.fullmatch("[0-9a-f]{16}", text):
        return text
    raise BadRequest(f"a site must be 16 hexadecimal digits, not {printable(text)!r}")


def pattern(request: Request, name: str) -> str | None:
    """A parameter that is a shell pattern; None if it is not given."""
    text = request.query.get(name)
    if text is not None and not 1 <= len(text) <= PATTERN_CHARS:
        raise BadRequest(f"{name} must have 1 to {PATTERN_CHARS} characters, not {len(text)}")
    return text


def seconds(request: Request, name: str, otherwise: float = 0.0, highest: float = 1e9) -> float:
    """A parameter in seconds."""
    text = request.query.get(name)
    if text is None:
        return otherwise
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text) and float(text) <= highest:
        return float(text)
    most = "" if highest >= 1e9 else f" up to {highest:g}"
    raise BadRequest(f"{name} must be a number of seconds{most}, not {printable(text)!r}")


def yes_or_no(request: Request, name: str, otherwise: bool) -> bool:
    """A parameter that is true or false."""
    text = request.query.get(name, str(otherwise).lower())
    if text in ("true", "false"):
        return text == "true"
    raise BadRequest(f"{name} must be true or false, not {printable(text)!r}")


def whole_number(what: str, text: str, lowest: int, highest: int) -> int:
    """Parse a number; error messages call it `what`."""
    digits = text.isascii() and text.isdigit() and len(text) <= len(str(highest))
    if digits and lowest <= int(text) <= highest:
        return int(text)
    raise BadRequest(f"{what} must be a whole number from {lowest} to {highest}, not {printable(text)!r}")
