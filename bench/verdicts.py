"""Verdicts on programs with known truth: `make verdicts` writes them to docs/verdicts.md.

Every program of tests/workloads/verdicts, built in every way, is traced for a minute. All programs of a way
run in parallel, since they mostly sleep. With `--hard` one way is traced under difficult conditions, with
`--inside` by the sampler inside the program. `bench.healthy` covers real programs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.kernel.workloads import BUILD as BUILD_ROOT
from tests.kernel.workloads import SOURCES as SOURCES_ROOT

from bench import launchers
from bench.documents import rewritten
from bench.tracing import RunningDaemon, ended_with_us
from bpfleakd.model.process import TracingMode
from bpfleakd.model.report import LeakReport, SiteReport
from bpfleakd.model.verdict import VERDICTS

_SOURCES = SOURCES_ROOT / "verdicts"
_BUILD = BUILD_ROOT / "verdicts"
_WAYS = ("O0", "O0-nofp", "O2", "O2-fp", "O2-stripped")
_HARD_WAY = "O2"


@dataclass(frozen=True, slots=True)
class _Condition:
    """A difficult condition: little CPU time, sampling, a daemon that is killed."""

    name: str
    busy_loops: int = 0
    mode: TracingMode = TracingMode.EXACT
    configuration: dict[str, Any] = field(default_factory=dict)
    kill_every_s: float | None = None
    at_least_s: float = 0.0
    # For the sampler inside the program.
    interval_bytes: int | None = None


_PLAIN = _Condition("")
_INSIDE = _Condition("one block in 32 KiB, inside", mode=TracingMode.INSIDE, interval_bytes=32 << 10)
_HARD = (
    _Condition("four busy loops", busy_loops=4),
    # Of a leak of 1,000 B/s one block a minute is recorded: nine of ten are called leaks after ten minutes.
    _Condition("sampled", mode=TracingMode.SAMPLED, at_least_s=900.0),
    _Condition(
        "one block in 4 KiB", mode=TracingMode.SAMPLED, configuration={"sampling": {"interval_bytes": 4_096}}
    ),
    _Condition("killed every 20 s", kill_every_s=20.0),
)


@dataclass(frozen=True, slots=True)
class _Result:
    """The verdict on a function, and the right one; `site` is None if no site was found.

    `way` is how it was built, or the name of the condition.
    """

    program: str
    way: str
    function: str
    right: tuple[str, ...]
    site: SiteReport | None
    observed_s: float

    @property
    def verdict(self) -> str:
        return self.site.verdict.value if self.site else "not found"

    @property
    def is_right(self) -> bool:
        return self.verdict in self.right


def main() -> int:
    """Run everything; the exit code is 1 if a verdict is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="how long each is traced (%(default)s)")
    parser.add_argument("--only", default="", help="programs whose name has this in it")
    parser.add_argument("--ways", nargs="+", default=_WAYS, choices=_WAYS, help="of building the programs")
    conditions = f"only {_HARD_WAY}, under these conditions: {', '.join(_names(_HARD))}"
    parser.add_argument("--hard", nargs="*", metavar="CONDITION", help=conditions)
    parser.add_argument("--inside", action="store_true", help=f"only {_HARD_WAY}, {_INSIDE.name}")
    arguments = parser.parse_args()
    subprocess.run(["make", "--silent", "-C", _SOURCES, f"BUILD={_BUILD}", "all"], check=True)
    programs = sorted(path.stem for path in _SOURCES.glob("*.json") if arguments.only in path.stem)
    runs = [(way, _PLAIN) for way in arguments.ways]
    if arguments.inside:
        runs = [(_HARD_WAY, _INSIDE)]
    elif arguments.hard is not None:
        runs = [(_HARD_WAY, one) for one in _HARD if one.name in (arguments.hard or _names(_HARD))]
    results = [
        result
        for way, condition in (runs if programs else ())
        for result in _of_way(programs, way, condition, arguments.seconds)
        if _show(result)
    ]
    columns = [condition.name or way for way, condition in runs]
    text = _report(results, columns, arguments.seconds)
    print(text)
    if not arguments.only and columns == list(_WAYS):
        rewritten("docs/verdicts.md", "make verdicts", text)
    if not arguments.only and columns == list(_names(_HARD)):
        rewritten("docs/verdicts.md", "make verdicts-hard", text)
    if not arguments.only and arguments.inside:
        rewritten("docs/verdicts.md", "make verdicts-inside", text)
    return 0 if all(result.is_right for result in results) else 1


def _names(conditions: Sequence[_Condition]) -> tuple[str, ...]:
    return tuple(one.name for one in conditions)


def _of_way(programs: Sequence[str], way: str, condition: _Condition, seconds: float) -> Iterator[_Result]:
    seconds = max(seconds, condition.at_least_s)
    launcher = launchers.Launcher()
    if condition.interval_bytes:
        launcher = launchers.inside(_BUILD, condition.interval_bytes)
    with RunningDaemon(**condition.configuration) as daemon, contextlib.ExitStack() as stack:
        for _ in range(condition.busy_loops):
            stack.enter_context(_busy_loop())
        running = [
            (name, *stack.enter_context(_running(launcher.command([_BUILD / f"{name}-{way}"]))))
            for name in programs
        ]
        for _name, process, pid in running:
            daemon.client.attach(pid, condition.mode)
            process.stdin.write("\n")
            process.stdin.flush()
        if condition.kill_every_s is not None:
            _kill_again_and_again(daemon, condition.kill_every_s, seconds)
        for name, _process, pid in running:
            report = _after(daemon, pid, seconds)
            truth = json.loads((_SOURCES / f"{name}.json").read_text())
            symbols = _functions(_BUILD / f"{name}-{way.removesuffix('-stripped')}")
            for function, right in truth.items():
                site = _site_of(report, function, symbols.get(function, range(0)))
                yield _Result(
                    name, condition.name or way, function, tuple(right), site, report.process.attached_s
                )


@contextlib.contextmanager
def _busy_loop() -> Iterator[None]:
    with subprocess.Popen(ended_with_us(sys.executable, "-c", "while True: pass")) as process:
        try:
            yield
        finally:
            process.kill()


def _kill_again_and_again(daemon: RunningDaemon, every_s: float, seconds: float) -> None:
    """The last one ends early enough that its successor has given verdicts."""
    until = time.monotonic() + seconds - every_s / 2
    while (left_s := until - time.monotonic()) > 0:
        time.sleep(min(every_s, left_s))
        daemon.kill_and_restart()


@contextlib.contextmanager
def _running(command: Sequence[str]) -> Iterator[tuple[subprocess.Popen, int]]:
    """The program, and its process to watch."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(ended_with_us(*command), stdin=pipe, stdout=pipe, text=True)
    assert process.stdout
    pid = int(process.stdout.readline().split()[1])
    try:
        yield process, pid
    finally:
        if pid != process.pid:
            subprocess.run(["kill", str(pid)], check=False)
        process.kill()
        process.wait()


def _after(daemon: RunningDaemon, pid: int, seconds: float) -> LeakReport:
    """The report, once the process was traced for this long."""
    while (left_s := seconds - daemon.client.report(pid, limit=1).process.attached_s) > 0:
        time.sleep(left_s)
    return daemon.client.report(pid)


def _functions(program: Path) -> dict[str, range]:
    """The addresses of a program's functions; for C++ without their arguments."""
    text = subprocess.run(["nm", "-S", "-C", program], check=True, capture_output=True, text=True).stdout
    found = re.findall(r"^([0-9a-f]+) ([0-9a-f]+) [tT] ([^\s(]+)", text, re.MULTILINE)
    functions: dict[str, range] = {}
    for start, size, name in found:
        addresses = range(int(start, 16), int(start, 16) + int(size, 16))
        # A function may have a separate cold part.
        functions[name] = max(functions.get(name, range(0)), addresses, key=len)
    return functions


def _site_of(report: LeakReport, function: str, addresses: range) -> SiteReport | None:
    """A function's call site that deserves most attention, found by name or, without names, by offset."""
    sites = [site for site in report.sites if _is_in(site, function, addresses)]
    return min(sites, key=lambda site: VERDICTS.index(site.verdict), default=None)


def _is_in(site: SiteReport, function: str, addresses: range) -> bool:
    return any(
        (frame.function or "").partition("(")[0] == function
        or (frame.function is None and frame.offset is not None and frame.offset - 1 in addresses)
        for frame in site.stack
    )


def _show(result: _Result) -> bool:
    """Progress, on standard error."""
    mark = "" if result.is_right else f"  WRONG, {' or '.join(result.right)} would be right"
    why = f"{result.site.confidence:.0%}: {result.site.reason}" if result.site else ""
    name = f"{result.program}-{result.way} {result.function}"
    print(f"{name:36} {result.verdict:10} {why}{mark}", file=sys.stderr, flush=True)
    return True


def _report(results: Sequence[_Result], columns: Sequence[str], seconds: float) -> str:
    leaks = [result for result in results if result.right == ("leak",)]
    found = [result for result in leaks if result.is_right]
    called = [result for result in results if result.verdict == "leak"]
    observed = sorted(result.observed_s for result in results)
    lines = (
        []
        if not results
        else [
            f"Traced for {observed[0]:.0f} to {observed[-1]:.0f} s (asked for: {seconds:.0f} s).",
            "",
            f"- Recall: {len(found)} of {len(leaks)} leaks are called `leak`.",
            f"- Precision: {len(found)} of {len(called)} call sites that are called `leak` leak.",
            f"- Other verdicts: {sum(r.is_right for r in results if r not in leaks)} of "
            f"{len(results) - len(leaks)} are right.",
            "",
            f"| program | function | right | {' | '.join(columns)} |",
            f"|---|---|---|{'---|' * len(columns)}",
        ]
    )
    for program, function, right in dict.fromkeys((r.program, r.function, r.right) for r in results):
        cells = {r.way: r for r in results if (r.program, r.function) == (program, function)}
        verdicts = [_cell(cells[way]) for way in columns if way in cells]
        lines.append(f"| `{program}` | `{function}` | {', '.join(right)} | {' | '.join(verdicts)} |")
    return "\n".join(lines) + "\n"


def _cell(result: _Result) -> str:
    share = f" {result.site.confidence:.0%}" if result.site else ""
    return f"{result.verdict}{share}" if result.is_right else f"**{result.verdict}**{share}"


if __name__ == "__main__":
    sys.exit(main())
