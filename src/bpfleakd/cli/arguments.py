"""Types and defaults of command-line arguments that both commands share."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from bpfleakd.api import SOCKET_VARIABLE

__all__ = ["number_between", "pid", "socket_from_environment", "whole_number_from"]


def socket_from_environment(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the socket path in BPFLEAKD_SOCKET; None if it is unset or empty."""
    text = environ.get(SOCKET_VARIABLE)
    return Path(text) if text else None


def whole_number_from(lowest: int) -> Callable[[str], int]:
    """Return an argparse type for whole numbers that are `lowest` or more."""

    def number(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) <= 18 and int(text) >= lowest):
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {lowest}")
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
            raise argparse.ArgumentTypeError(f"{text!r} is no number from {lowest:g} to {highest:g}")
        return value

    return number


def pid(text: str) -> int:
    """The argparse type of a process id."""
    if not (text.isascii() and text.isdigit() and len(text) <= 7 and int(text) >= 1):
        raise argparse.ArgumentTypeError(f"{text!r} is no process id")
    return int(text)
