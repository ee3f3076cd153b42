"""Leaks of released packages: whether they are found and named, and the fixed release is not called a leak.

Each package is installed from PyPI, npm or Debian in two releases, the leaking and the fixed one, into
separate directories below build/. A small program repeats what makes it leak; some of the programs are
traced at a time. `make released-leaks` writes a row for each to docs/verdicts.md, and exits with 1 if a leak
is not named, or a fixed release is called a leak.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.documents import rewritten
from bench.released_packages import RELEASED_LEAKS, Registry, ReleasedLeak
from bench.tracing import RunningDaemon, ended_with_us
from bpfleakd.model.process import TracingMode
from bpfleakd.model.report import LeakReport, SiteReport
from bpfleakd.model.verdict import Verdict
from bpfleakd.units import human_rate

_BUILD = Path(__file__).parents[1] / "build" / "released-leaks"
_PYTHON = "/usr/bin/python3"
_PYTHON_PROGRAM = """
import sys
sys.path.insert(0, {installed!r})
{program}
import time as _time
_number = 0
while True:
    for _ in range({at_once}):
        _number += 1
        step(_number)
    _time.sleep(0.02)
"""
_NODE_PROGRAM = """
module.paths.unshift('{installed}/node_modules');
{program}
let number = 0;
setInterval(() => {{ for (let i = 0; i < {at_once}; i++) step(++number); }}, 20);
"""
_RUBY_PROGRAM = """
{program}
number = 0
loop do
  {at_once}.times {{ step(number += 1) }}
  sleep 0.02
end
"""
_PROGRAMS = {
    Registry.PYPI: _PYTHON_PROGRAM,
    Registry.NPM: _NODE_PROGRAM,
    Registry.DEBIAN: _RUBY_PROGRAM,
}
_PAUSE_S = 5.0
# Object heaps are read one by one.
_AT_ONCE = 8
# Memory grows in steps, by pages and arenas, so resident memory shows the rate only over some time.
_WARM_UP_S = 20.0


@dataclass(slots=True)
class _Process:
    """A running release; `leaks` is the truth, `resident` are pairs of time and resident memory."""

    leak: ReleasedLeak
    leaks: bool
    resident: list[tuple[float, int]] = field(default_factory=list)
    found_s: float | None = None

    @property
    def release(self) -> str:
        return self.leak.leaks if self.leaks else self.leak.repaired

    @property
    def resident_bytes_per_s(self) -> float:
        """How fast its resident memory grew since the end of the warm-up."""
        (first_s, first), (last_s, last) = self.resident[0], self.resident[-1]
        return (last - first) / max(last_s - first_s, 1e-3)


def main() -> int:
    """Print the table; returns 1 if a row of it is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=180, help="how long they are traced (%(default)s)")
    parser.add_argument("--only", default="", help="packages whose name has this in it")
    arguments = parser.parse_args()
    leaks = [leak for leak in RELEASED_LEAKS if arguments.only in leak.leaks]
    lines = [
        "| release | what leaks | what is said of it | after | grows | right |",
        "|---|---|---|---|---|---|",
    ]
    wrong = 0
    with RunningDaemon() as daemon:
        for first in range(0, len(leaks), _AT_ONCE):
            for row, is_right in _rows(daemon, leaks[first : first + _AT_ONCE], arguments.seconds):
                print(row, flush=True)
                lines.append(row)
                wrong += not is_right
    if not arguments.only:
        rewritten("docs/verdicts.md", "make released-leaks", "\n".join(lines) + "\n")
    return 1 if wrong else 0


def _rows(daemon: RunningDaemon, leaks: Sequence[ReleasedLeak], seconds: float) -> list[tuple[str, bool]]:
    """Trace some of them, with their fixed releases; returns their rows, and whether these are right."""
    with contextlib.ExitStack() as stack:
        running: dict[int, _Process] = {}
        for leak in leaks:
            running[stack.enter_context(_running(leak, leak.leaks))] = _Process(leak, True)
            if leak.repaired:
                running[stack.enter_context(_running(leak, leak.repaired))] = _Process(leak, False)
        time.sleep(_PAUSE_S)
        for pid in running:
            daemon.client.attach(pid, TracingMode.EXACT)
        _watch(daemon, running, seconds)
        return [_row(process, daemon.client.report(pid, limit=20)) for pid, process in running.items()]


@contextlib.contextmanager
def _running(leak: ReleasedLeak, release: str) -> Iterator[int]:
    installed = str(_installed(release, leak.registry))
    text = _PROGRAMS[leak.registry].format(installed=installed, program=leak.program, at_once=leak.at_once)
    command = ended_with_us(*_interpreter(release, leak.registry, installed), text)
    process: subprocess.Popen[Any] = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def _interpreter(release: str, registry: Registry, installed: str) -> tuple[str, ...]:
    match registry:
        case Registry.PYPI:
            return _PYTHON, "-c"
        case Registry.NPM:
            return "/usr/bin/node", "-e"
        case Registry.DEBIAN:
            return "chroot", installed, f"/usr/bin/{Path(release).name}", "-e"


def _installed(release: str, registry: Registry) -> Path:
    target = _BUILD / release.replace(" ", "+").replace("/", "+")
    if not target.is_dir():
        # A partial tree of a call that failed must not be taken for a whole one.
        new = Path(f"{target}.new")
        shutil.rmtree(new, ignore_errors=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(_install_command(release, registry, str(new)), check=True)
        new.rename(target)
    return target


def _install_command(release: str, registry: Registry, target: str) -> list[str]:
    match registry:
        case Registry.PYPI:
            return [_PYTHON, "-m", "pip", "install", "--quiet", "--target", target, *release.split()]
        case Registry.NPM:
            options = ("--silent", "--no-audit", "--no-fund", "--prefix", target)
            return ["npm", "install", *options, *release.split()]
        case Registry.DEBIAN:
            suite, _, package = release.partition("/")
            include = f"--include=base-files,{package}"
            return ["mmdebstrap", "--quiet", "--variant=extract", include, suite, target]


def _watch(daemon: RunningDaemon, running: dict[int, _Process], seconds: float) -> None:
    began = time.monotonic()
    while (now_s := time.monotonic() - began) < seconds:
        time.sleep(_PAUSE_S)
        for pid, process in running.items():
            if now_s >= _WARM_UP_S:
                process.resident.append((time.monotonic(), _anonymous_bytes(pid)))
            is_looked_for = process.leaks and process.found_s is None
            if is_looked_for and _is_right(daemon.client.report(pid, limit=5), process.leak):
                process.found_s = now_s


def _anonymous_bytes(pid: int) -> int:
    found = re.search(r"^RssAnon:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(found[1]) << 10 if found else 0


def _worst(report: LeakReport) -> SiteReport | None:
    return report.sites[0] if report.sites else None


def _is_right(report: LeakReport, leak: ReleasedLeak) -> bool:
    if leak.registry is Registry.NPM:
        return report.process_verdict is not None and report.process_verdict.verdict is Verdict.LEAK
    worst = _worst(report)
    return worst is not None and worst.verdict is Verdict.LEAK and _name(worst) in leak.blamed


def _name(site: SiteReport) -> str:
    """The function; for C++ without its arguments."""
    return (site.function or "").partition("(")[0]


def _row(process: _Process, report: LeakReport) -> tuple[str, bool]:
    found = [site for site in report.sites if site.verdict is Verdict.LEAK]
    worst, verdict = _worst(report), report.process_verdict
    said = "nothing"
    if process.leak.registry is Registry.NPM and verdict is not None:
        said = f"{verdict.verdict}: {verdict.reason}" if process.leaks or found else said
    elif worst is not None and (found or process.leaks):
        of = f", {worst.type}" if worst.type else ""
        said = f"{worst.verdict} `{_name(worst)}` {worst.location}{of}"
        said += f" {human_rate(verdict.leak_bytes_per_s)}" if process.leaks and verdict is not None else ""
    is_right = (process.found_s is not None) if process.leaks else not found
    after = "" if process.found_s is None else f"{process.found_s:.0f} s"
    cells = (
        process.release,
        process.leak.why if process.leaks else "repaired",
        said,
        after,
        human_rate(process.resident_bytes_per_s),
        "yes" if is_right else "**no**",
    )
    return f"| {' | '.join(cells)} |", is_right


if __name__ == "__main__":
    sys.exit(main())
