"""All benchmarks, one after the other, results/README.md and the figures in the documents: `make bench`."""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench import quotes
from bench.figures import RESULTS, Benchmark, read_results
from bench.plots import draw
from bench.runner import end_on_signals
from bench.table import results_page

BENCHMARKS = (
    "pair",
    "real_programs",
    "settled",
    "many_processes",
    "growth",
    "space",
    "walk",
    "python_walk",
    "steps",
    "crowd",
    "daemon",
    "exec_latency",
    "process_events",
    "many_live",
    "idle_auto",
    "tables",
    "scan",
    "go_profile",
    "java",
    "java_walk",
    "dotnet",
    "classes",
    "bill",
    "inside",
)
# Run in parallel, because their speed does not matter; they mostly wait.
_SHORT_JOBS = 4
_SHORT_WARNING = "A short run only shows that everything works: its figures say little, and are not kept."


def main() -> int:
    """Run them; returns the exit code."""
    arguments = _arguments()
    end_on_signals()
    if arguments.short:
        print(_SHORT_WARNING + "\n")
        with tempfile.TemporaryDirectory(prefix="bpfleakd-bench-") as directory:
            return _run(arguments, Path(directory))
    code = _run(arguments, RESULTS)
    kept = [read_results(name) for name in BENCHMARKS if (RESULTS / f"{name}.json").exists()]
    for path in RESULTS.glob("*.svg"):
        path.unlink()
    for benchmark in kept:
        draw(benchmark, RESULTS)
    (RESULTS / "README.md").write_text(results_page(kept))
    quotes.main()
    return code


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.run", description=__doc__)
    parser.add_argument("benchmarks", nargs="*", metavar="BENCHMARK", help=f"of: {', '.join(BENCHMARKS)}")
    parser.add_argument("--short", action="store_true", help="see whether all works, in a minute or two")
    parser.add_argument("--strict", action="store_true", help="fail if a demand is not met")
    arguments = parser.parse_args()
    unknown = set(arguments.benchmarks) - set(BENCHMARKS)
    if unknown:
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    return arguments


def _run(arguments: argparse.Namespace, directory: Path) -> int:
    """Run each in a separate process, so that none has the libraries of another in its memory."""
    directory.mkdir(exist_ok=True)
    broken: list[str] = []
    found: list[Benchmark] = []
    names = arguments.benchmarks or BENCHMARKS
    for name, is_whole in _ended(names, directory, short=arguments.short):
        if is_whole:
            found.append(read_results(name, directory))
            draw(found[-1], directory)
        else:
            broken.append(name)
    print("All demands:\n")
    demands = [demand for benchmark in found for demand in benchmark.demands]
    print("\n".join(f"  {demand}" for demand in demands))
    if broken:
        print(f"\nnot to their end: {', '.join(broken)}")
    missed = any(demand.verdict != "PASS" for demand in demands)
    return 1 if broken or (arguments.strict and missed) else 0


def _ended(names: Sequence[str], directory: Path, *, short: bool) -> Iterator[tuple[str, bool]]:
    """Yield each benchmark when it has ended, and whether it completed; the generator's end ends all."""
    running: set[subprocess.Popen] = set()

    def run(name: str) -> bool:
        command = [sys.executable, "-m", f"bench.{name}", "--keep", str(directory), *["--short"] * short]
        began_s = time.monotonic()
        with contextlib.ExitStack() as stack:
            # Parallel benchmarks print when they have ended.
            output = stack.enter_context((directory / f"{name}.out").open("wb")) if short else None
            process = stack.enter_context(
                subprocess.Popen(command, stdout=output, stderr=output and subprocess.STDOUT)
            )
            running.add(process)
            is_whole = process.wait() == 0
            running.discard(process)
        print(f"{name}: {time.monotonic() - began_s:.0f} s", file=sys.stderr, flush=True)
        return is_whole

    with ThreadPoolExecutor(_SHORT_JOBS if short else 1) as pool:
        try:
            for name, is_whole in zip(names, pool.map(run, names), strict=True):
                if short:
                    print((directory / f"{name}.out").read_text(), flush=True)
                yield name, is_whole
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(running):
                process.terminate()


if __name__ == "__main__":
    sys.exit(main())
