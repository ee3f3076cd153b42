"""All benchmarks, one after the other, and results/README.md: `make bench`."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.figures import RESULTS, Benchmark, read_results
from bench.runner import end_on_signals
from bench.table import results_page

__all__ = ["main"]

BENCHMARKS = ("pair", "space", "walk", "steps", "daemon", "idle_auto", "tables", "scan")
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
    (RESULTS / "README.md").write_text(results_page(kept))
    return code


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.run", description=__doc__)
    parser.add_argument("benchmarks", nargs="*", metavar="BENCHMARK", help=f"of: {', '.join(BENCHMARKS)}")
    parser.add_argument("--short", action="store_true", help="see whether all works, in under a minute")
    parser.add_argument("--strict", action="store_true", help="fail if a demand is not met")
    arguments = parser.parse_args()
    unknown = set(arguments.benchmarks) - set(BENCHMARKS)
    if unknown:
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    return arguments


def _run(arguments: argparse.Namespace, directory: Path) -> int:
    """Run each in a process of its own, so that none has the libraries of another in its memory."""
    directory.mkdir(exist_ok=True)
    broken: list[str] = []
    found: list[Benchmark] = []
    for name in arguments.benchmarks or BENCHMARKS:
        command = [sys.executable, "-m", f"bench.{name}", "--keep", str(directory)]
        if _run_one(command + ["--short"] * arguments.short):
            found.append(read_results(name, directory))
        else:
            broken.append(name)
    print("All demands:\n")
    demands = [demand for benchmark in found for demand in benchmark.demands]
    print("\n".join(f"  {demand}" for demand in demands))
    if broken:
        print(f"\nnot to their end: {', '.join(broken)}")
    missed = any(demand.verdict != "PASS" for demand in demands)
    return 1 if broken or (arguments.strict and missed) else 0


def _run_one(command: list[str]) -> bool:
    with subprocess.Popen(command) as process:
        try:
            return process.wait() == 0
        finally:
            process.terminate()


if __name__ == "__main__":
    sys.exit(main())
