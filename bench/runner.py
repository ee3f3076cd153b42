"""Runs one benchmark as a program."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NoReturn

from bench.figures import Benchmark


def run_alone(measure: Callable[[bool], Benchmark]) -> None:
    """Measure and print; `--keep DIRECTORY` also writes JSON there."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--short", action="store_true", help="see whether it works, not how fast")
    parser.add_argument("--keep", type=Path, metavar="DIRECTORY", help="write what was found there, as JSON")
    arguments = parser.parse_args()
    end_on_signals()
    benchmark = measure(arguments.short)
    print(benchmark, flush=True)
    if arguments.keep:
        benchmark.write(arguments.keep)


def end_on_signals() -> None:
    """Make SIGTERM and SIGINT end the program as an error does, with all cleanup."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)
