"""Leaks of released Python packages, at the level of Python: are they named, with function and type?

Each package is installed from PyPI, in the version given, into a directory of its own below build/. A small
program does again and again what makes it leak. All of them are traced at once. `make python-leaks` prints a
row for each, and ends with 1 if one is not named.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.tracing import RunningDaemon, ended_with_us
from bpfleakd.model.process import TracingMode
from bpfleakd.model.report import LeakReport, SiteReport
from bpfleakd.model.verdict import Verdict

__all__: list[str] = []

_BUILD = Path(__file__).parents[1] / "build" / "python-leaks"
_PYTHON = "/usr/bin/python3"
_LOOP = """
import time
number = 0
while True:
    for _ in range({at_once}):
        number += 1
        step(number)
    time.sleep(0.02)
"""
_PATIENCE_S = 240.0
_PAUSE_S = 5.0


@dataclass(frozen=True, slots=True)
class _Leak:
    """`program` defines step(number), called `at_once` times each 20 ms; `function` is who is to be named."""

    package: str
    program: str
    function: str
    why: str
    at_once: int = 5


_LEAKS = (
    _Leak(
        "attrs==23.1.0",
        "import attr\ndef step(number):\n    attr.make_class(f'Row{number}', ['a', 'b'])\n",
        "_make_method",
        "the source of each class that is made stays in linecache.cache",
        1,
    ),
    _Leak(
        "marshmallow==3.20.1",
        "from marshmallow import Schema, fields\n"
        "def step(number):\n    type(f'Schema{number}', (Schema,), {'x': fields.Int()})\n",
        "register",
        "every schema class stays in class_registry",
        1,
    ),
    _Leak(
        "dogpile.cache==1.2.2",
        "from dogpile.cache import make_region\n"
        "region = make_region().configure('dogpile.cache.memory', expiration_time=1)\n"
        "def step(number):\n    region.get_or_create(f'page {number}', lambda: {'number': number})\n",
        "MemoryBackend.set",
        "what has expired is never removed",
    ),
    _Leak(
        "pint==0.20.1",
        "import pint\nregistry = pint.UnitRegistry()\n"
        "def step(number):\n    registry.parse_units(f'meter ** {number}')\n",
        "PlainRegistry._parse_units",
        "every unit that was ever parsed stays in a cache",
        2,
    ),
    _Leak(
        "prometheus_client==0.17.1",
        "from prometheus_client import Counter\nrequests = Counter('requests', 'Requests', ['customer'])\n"
        "def step(number):\n    requests.labels(f'customer {number}').inc()\n",
        "MetricWrapperBase.labels",
        "a time series for each value of a label",
    ),
)


def _installed(package: str) -> Path:
    target = _BUILD / package
    if not target.is_dir():
        command = [_PYTHON, "-m", "pip", "install", "--quiet", "--target", str(target), package]
        subprocess.run(command, check=True)
    return target


def _is_right(site: SiteReport, leak: _Leak) -> bool:
    return site.verdict is Verdict.LEAK and site.kind == "managed" and site.function == leak.function


def _row(leak: _Leak, report: LeakReport | None, seconds: float) -> str:
    worst = report.sites[0] if report and report.sites else None
    said = f"{worst.verdict} `{worst.function}` {worst.location}, {worst.type}" if worst else "nothing"
    return f"| {leak.package} | {leak.why} | {said} | {seconds:.0f} s |"


def main() -> int:
    """Print the table."""
    with contextlib.ExitStack() as stack:
        daemon = stack.enter_context(RunningDaemon())
        running: dict[int, _Leak] = {}
        for leak in _LEAKS:
            path = _installed(leak.package)
            program = f"import sys\nsys.path.insert(0, {str(path)!r})\n{leak.program}"
            command = ended_with_us(_PYTHON, "-c", program + _LOOP.format(at_once=leak.at_once))
            process: subprocess.Popen[Any] = subprocess.Popen(command, stdin=subprocess.DEVNULL)
            stack.callback(process.wait)
            stack.callback(process.kill)
            running[process.pid] = leak
        time.sleep(_PAUSE_S)
        for pid in running:
            daemon.client.attach(pid, TracingMode.EXACT)
        began = time.monotonic()
        print("| package | what it does | what bpfleakd says | after |\n|---|---|---|---|")
        while running and time.monotonic() < began + _PATIENCE_S:
            time.sleep(_PAUSE_S)
            for pid, leak in list(running.items()):
                report = daemon.client.report(pid, limit=5)
                if report.sites and _is_right(report.sites[0], leak):
                    print(_row(leak, report, time.monotonic() - began), flush=True)
                    del running[pid]
        for pid, leak in running.items():
            print(_row(leak, daemon.client.report(pid, limit=5), _PATIENCE_S), flush=True)
        return 1 if running else 0


if __name__ == "__main__":
    sys.exit(main())
