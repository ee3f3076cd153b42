"""Types and defaults of command-line arguments that several commands share."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from bpfleakd.export.stack_values import StackValue
from bpfleakd.paths import SOCKET_VARIABLE

Choice = TypeVar("Choice", bound=StrEnum)

_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def socket_from_environment(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the socket path in BPFLEAKD_SOCKET; None if it is unset or empty."""
    text = environ.get(SOCKET_VARIABLE)
    return Path(text) if text else None


def add_no_suppressions(parser: argparse.ArgumentParser) -> None:
    """Add --no-suppressions, as `suppress`."""
    parser.add_argument(
        "--no-suppressions",
        dest="suppress",
        action="store_false",
        help="also show suppressed call sites",
    )


def add_process(
    parser: argparse.ArgumentParser,
    *,
    required: bool = True,
    what: str = "a traced process, or the only one of that name",
    one: bool = True,
) -> None:
    """Add the process that a command is about, as `pid`: PID or --pid N, which mean the same everywhere.

    `one`: a name becomes the PID of the traced process that has it (named_process.py). Otherwise `pid` is the
    name, and the command takes every process that has it.
    """
    parser.add_argument(
        "pid",
        type=pid_or_name,
        action=StoreProcess,
        nargs="?",
        metavar="PID|NAME",
        help=what,
    )
    parser.add_argument("--pid", type=pid, action=StoreProcess, metavar="N", help="the same as PID")
    parser.set_defaults(needs_process=required, needs_one=one)


class StoreProcess(argparse.Action):
    """Stores a process once; the missing one of PID and --pid is ignored."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        _option: str | None = None,
    ) -> None:
        if values is None:
            return
        named = getattr(namespace, self.dest, None)
        if named not in (None, values):
            raise argparse.ArgumentError(self, f"name one process, not both {named} and {values}")
        setattr(namespace, self.dest, values)


def add_value(parser: argparse.ArgumentParser, what: str) -> None:
    """Add --value; `what` describes its purpose."""
    parser.add_argument(
        "--value",
        type=one_of(StackValue),
        choices=list(StackValue),
        metavar="VALUE",
        help=f"{what}: {', '.join(StackValue)} ({StackValue.LIVE_BYTES})",
    )


def one_of(kind: type[Choice]) -> Callable[[str], Choice]:
    """Return an argparse type for the values of `kind`."""

    def choice(text: str) -> Choice:
        if text not in list(kind):
            raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(kind)}")
        return kind(text)

    return choice


def whole_number_from(lowest: int) -> Callable[[str], int]:
    """Return an argparse type for whole numbers that are `lowest` or more."""

    def number(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) <= 18 and int(text) >= lowest):
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number ≥ {lowest}")
        return int(text)

    return number


def whole_number_between(lowest: int, highest: int) -> Callable[[str], int]:
    """Return an argparse type for whole numbers in a range."""

    def number(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) <= 18 and lowest <= int(text) <= highest):
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {lowest} to {highest}")
        return int(text)

    return number


def number_between(lowest: float, highest: float) -> Callable[[str], float]:
    """Return an argparse type for numbers in a range."""

    def number(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not lowest <= value <= highest:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {lowest:g} to {highest:g}")
        return value

    return number


def duration_s(text: str) -> float:
    """The argparse type of a duration, in seconds: "60s", "1.5h", "1h30m", or "60"."""
    parts = re.findall(r"([0-9]+(?:\.[0-9]+)?)([smhd])", text)
    if text.isascii() and text and "".join(map("".join, parts)) == text and len(text) <= 32:
        return sum(float(number) * _SECONDS[unit] for number, unit in parts)
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text):
        return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a duration (for example 60s, 5m or 1h30m)")


def site(text: str) -> str:
    """The argparse type of a call site's fingerprint."""
    if not re.fullmatch("[0-9a-f]{16}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a call site: 16 hexadecimal digits")
    return text


def pid(text: str) -> int:
    """The argparse type of a process id."""
    if not (text.isascii() and text.isdigit() and len(text) <= 7 and int(text) >= 1):
        raise argparse.ArgumentTypeError(f"{text!r} is not a process ID")
    return int(text)


def pid_or_name(text: str) -> int | str:
    """The argparse type of a process id, or of a name, which is anything but digits."""
    if text.isascii() and text.isdigit():
        return pid(text)
    if not text or text.startswith("-"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither a process ID nor a name")
    return text
