"""The output file of a command: written completely or not at all."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from bpfleakd.errors import OutputFailed

STANDARD_OUTPUT = "-"


def add_output(parser: argparse.ArgumentParser, example: str) -> None:
    """Add -o/--output, standard output by default."""
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        default=STANDARD_OUTPUT,
        help=f"output file, for example {example} (default: standard output)",
    )


def write_output(name: str, content: bytes) -> None:
    """Write to the file `name`, or to standard output for "-". Raises OutputFailed."""
    if name == STANDARD_OUTPUT:
        sys.stdout.buffer.write(content)
        return
    path = Path(name)
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(content)  # /dev/null, a pipe
            return
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with open(descriptor, "wb") as file:
                file.write(content)
                os.fchmod(file.fileno(), 0o666 & ~_umask())
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise OutputFailed(f"cannot write {name}: {error.strerror or error}") from error


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
