"""`bpfleakctl analyze FILE`: the verdicts on a saved history. Needs no daemon."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec

from bpfleakd.cli.show import show
from bpfleakd.errors import BadHistory
from bpfleakd.model.history import StoredHistory

HELP = "compute the verdicts on a saved history again"

_BYTES_MAX = 256 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="a file written by `bpfleakctl history`")
    parser.add_argument("--json", action="store_true", help="print JSON (docs/json.md)")


def run(arguments: argparse.Namespace) -> int:
    """Print the verdicts, or JSON. Raises BadHistory."""
    # numpy takes longer to import than most commands take.
    from bpfleakd.verdicts.stored_history import STORED_VERSION, classified

    history = _read(arguments.file)
    if history.version != STORED_VERSION:
        raise BadHistory(
            f"{arguments.file} has version {history.version}, not {STORED_VERSION}",
            "use the bpfleakctl that wrote it, or save it again",
        )
    try:
        process, sites = classified(history)
    except ValueError as error:
        raise BadHistory(f"{arguments.file}: {error}") from None
    rows = [
        {"site": site.site, "function": site.function, "module": site.module, **msgspec.to_builtins(verdict)}
        for site, verdict in sites
    ]

    def view(width: int | None) -> object:
        from bpfleakd.cli.render.saved import analyzed_view

        return analyzed_view(history, process, sites, width=width)

    return show({"process_verdict": process, "sites": rows}, view, as_json=arguments.json)


def _read(path: Path) -> StoredHistory:
    try:
        with path.open("rb") as file:
            data = file.read(_BYTES_MAX + 1)
    except OSError as error:
        raise BadHistory(f"cannot read {path}: {error.strerror}") from None
    if len(data) > _BYTES_MAX:
        raise BadHistory(f"{path} has more than {_BYTES_MAX >> 20} MiB")
    try:
        return msgspec.json.decode(data, type=StoredHistory)
    except msgspec.MsgspecError as error:
        raise BadHistory(
            f"{path} is not a saved history: {error}", "`bpfleakctl history` writes them"
        ) from None
