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


def run_alone(measure: Callable[..., Benchmark], **options: str) -> None:
    """Measure and print; `--keep DIRECTORY` also writes JSON there. `options` have these defaults."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--short", action="store_true", help="see whether it works, not how fast")
    parser.add_argument("--keep", type=Path, metavar="DIRECTORY", help="write what was found there, as JSON")
    for name, default in options.items():
        parser.add_argument(f"--{name}", default=default, help=f"instead of {default}")
    arguments = parser.parse_args()
    end_on_signals()
    benchmark = measure(arguments.short, **{name: getattr(arguments, name) for name in options})
    print(benchmark, flush=True)
    if arguments.keep:
        benchmark.write(arguments.keep)


def end_on_signals() -> None:
    """Make SIGTERM and SIGINT end the program as an error does, with all cleanup."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)
