"""The text around the options in the help of each command: its purpose and examples."""

from __future__ import annotations

import argparse
import textwrap

_WIDTH = 78

# A command line, and what it does.
EXAMPLES: dict[str, tuple[tuple[str, str], ...]] = {
    "attach": (
        ("bpfleakctl attach 4711", "record every block from now on; older blocks are not included"),
        ("bpfleakctl attach 4711 --mode sampled", "cheaper, for programs that allocate very often"),
        ("bpfleakctl attach --unit shop", "all processes of shop.service"),
        ("bpfleakctl attach shop --wait --for 2m", "a leak test: exit code 20 if it leaks, 0 if not"),
    ),
    "run": (
        ("bpfleakctl run -- ./server --port 80", "start it with a sampler inside, and watch it with top"),
        ("bpfleakctl run --sample-interval 32768 -- make check > log", "finer; the output goes to log"),
    ),
    "detach": (("bpfleakctl detach 4711", "remove every probe; the last report stays (reports)"),),
    "ps": (
        ("bpfleakctl ps", "traced processes, their live memory and growth"),
        ("bpfleakctl ps --all", "also processes that are watched, not traced"),
    ),
    "policy": (("bpfleakctl policy 4711", "its mode, and the rule that decided"),),
    "top": (
        ("bpfleakctl top", "all traced processes on a screen; ? shows its keys"),
        ("bpfleakctl top 4711", "the call sites of one process, those that leak first"),
        ("bpfleakctl top 4711 --once --group module", "print once, grouped by library"),
        ("bpfleakctl top 4711 --json --limit 0", "everything, for programs and for diff"),
    ),
    "report": (("bpfleakctl report 4711 --older-than 10m", "blocks that were not freed for ten minutes"),),
    "types": (
        (
            "bpfleakctl types 1234",
            "which objects fill the heap; asks first, because it stops the process",
        ),
        ("bpfleakctl types 1234 --yes --json", "the same in a script"),
        ("bpfleakctl types 1234 --who", "Java: who allocates the surviving objects, and what refers to them"),
        ("bpfleakctl types 1234 --inspector", "Node.js: which functions allocate the surviving objects"),
    ),
    "names": (
        ("bpfleakctl names 4711", "how many frames have names, and where they are missing"),
        ("bpfleakctl names 4711 --attach", "ask a Java process for the names of its compiled code"),
    ),
    "scan": (
        ("bpfleakctl scan 4711", "stop it for at most 200 ms, and look for lost blocks"),
        ("bpfleakctl scan 4711 --no-stop --blocks", "do not stop it; list the blocks"),
    ),
    "diff": (
        ("bpfleakctl diff 4711 --from 10m", "what changed in the last ten minutes"),
        ("bpfleakctl diff before.json after.json", "compare two files written by `top --json --limit 0`"),
    ),
    "reports": (
        ("bpfleakctl reports", "the stored reports"),
        ("bpfleakctl reports --show 7", "show one of them"),
    ),
    "maps": (("bpfleakctl maps 4711", "what its resident memory consists of"),),
    "history": (("bpfleakctl history 4711 -o history.json", "save the data behind the verdicts"),),
    "analyze": (("bpfleakctl analyze history.json", "compute the verdicts again, on any machine"),),
    "export": (
        ("bpfleakctl export 4711 -o leak.html", "a flame graph to search and zoom in a browser"),
        ("bpfleakctl export 4711 --value growth -o leak.svg", "a picture of what grows"),
        ("bpfleakctl export 4711 -o heap.pb.gz", "then: go tool pprof -http=: heap.pb.gz"),
        ("bpfleakctl export 4711 -o heap.speedscope.json", "drop it on https://www.speedscope.app"),
        ("bpfleakctl export 4711 --format collapsed", "one line per stack: main;f;g bytes"),
    ),
    "doctor": (("bpfleakctl doctor", "what this machine supports; exit code 1 if tracing cannot work"),),
}


def add_examples(parser: argparse.ArgumentParser, name: str, purpose: str) -> None:
    """Put the purpose of command `name` above its options, and its examples below."""
    lines = [f"  {command}\n      {words}" for command, words in EXAMPLES[name]]
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = textwrap.fill(f"{purpose[:1].upper()}{purpose[1:]}.", _WIDTH)
    parser.epilog = "\n".join(["examples:", *lines])
