"""What stands above and below the options in the help of each command: what it is for, and how it is used."""

from __future__ import annotations

import argparse
import textwrap

__all__ = ["EXAMPLES", "add_examples"]

_WIDTH = 78

# A command line, and what it does.
EXAMPLES: dict[str, tuple[tuple[str, str], ...]] = {
    "attach": (
        ("bpfleakctl attach 4711", "record every block from now on; older ones are not seen"),
        ("bpfleakctl attach 4711 --mode sampled", "cheaper, for programs that allocate very often"),
    ),
    "run": (
        ("bpfleakctl run -- ./server --port 80", "start it with a sampler inside, and watch it with top"),
        ("bpfleakctl run --sample-interval 32768 -- make check > log", "finer; the output goes to log"),
    ),
    "detach": (("bpfleakctl detach 4711", "remove every probe; the last report stays (reports)"),),
    "ps": (
        ("bpfleakctl ps", "who is traced, how much is live and how fast it grows"),
        ("bpfleakctl ps --all", "and whose memory is watched without being traced"),
    ),
    "policy": (("bpfleakctl policy 4711", "why it is traced or not, and by which rule"),),
    "top": (
        ("bpfleakctl top", "all traced processes on a screen; ? shows its keys"),
        ("bpfleakctl top --pid 4711", "the call sites of one process, those that leak first"),
        ("bpfleakctl top --pid 4711 --once --group module", "print once: by library"),
        ("bpfleakctl top --pid 4711 --json --limit 0", "everything, for programs and for diff"),
    ),
    "report": (
        ("bpfleakctl report --pid 4711 --older-than 10m", "blocks that nobody has freed for ten minutes"),
    ),
    "types": (
        ("bpfleakctl types --pid 1234", "which objects fill the heap, after it was said what that costs"),
        ("bpfleakctl types --pid 1234 --yes --json", "the same in a script"),
    ),
    "scan": (
        ("bpfleakctl scan --pid 4711", "stop it for 200 ms at most, and look for blocks without a pointer"),
        ("bpfleakctl scan --pid 4711 --no-stop --blocks", "without stopping it; list the blocks"),
    ),
    "diff": (
        ("bpfleakctl diff --pid 4711 --from 10m", "what changed in the last ten minutes"),
        ("bpfleakctl diff before.json after.json", "between two that `top --json --limit 0` wrote"),
    ),
    "reports": (
        ("bpfleakctl reports", "what is kept of processes that ended or were detached"),
        ("bpfleakctl reports --show 7", "one of them"),
    ),
    "maps": (("bpfleakctl maps --pid 4711", "what its resident memory is made of, and what explains it"),),
    "history": (("bpfleakctl history --pid 4711 -o history.json", "save what the verdicts are made of"),),
    "analyze": (("bpfleakctl analyze history.json", "judge it again, here or on another machine"),),
    "export": (
        ("bpfleakctl export --pid 4711 -o leak.html", "a flame graph to search and zoom in a browser"),
        ("bpfleakctl export --pid 4711 --value growth -o leak.svg", "a picture of what grows"),
        ("bpfleakctl export --pid 4711 -o heap.pb.gz", "then: go tool pprof -http=: heap.pb.gz"),
        ("bpfleakctl export --pid 4711 -o heap.speedscope.json", "drop it on https://www.speedscope.app"),
        ("bpfleakctl export --pid 4711 --format collapsed", "a stack a line: main;f;g bytes"),
    ),
    "doctor": (("bpfleakctl doctor", "what this machine can do; exit code 1 if tracing cannot work"),),
}


def add_examples(parser: argparse.ArgumentParser, name: str, purpose: str) -> None:
    """Put the purpose of command `name` above its options, and its examples below."""
    lines = [f"  {command}\n      {words}" for command, words in EXAMPLES[name]]
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = textwrap.fill(f"{purpose[:1].upper()}{purpose[1:]}.", _WIDTH)
    parser.epilog = "\n".join(["examples:", *lines])
