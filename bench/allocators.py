"""Which functions of the installed allocators are probed, and which of them the kernel single-steps.

    python -m bench.allocators [FILE...]         the table of docs/allocators.md

A hit on an instruction that the kernel emulates costs a tenth of one that it single-steps.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from bpfleakd.elf.image import ElfImage
from bpfleakd.elf.symbols import SymbolTable
from bpfleakd.kernel.probes import points
from bpfleakd.model.code.mapping import Mapping
from bpfleakd.process.allocators import FUNCTIONS
from bpfleakd.process.files.process_code import open_code
from bpfleakd.sandbox.helpers import Helpers
from bpfleakd.tracing.attaching.discovery import Discovery, ProbedFile

_LIBRARIES = Path("/usr/lib/x86_64-linux-gnu")
_KNOWN = (
    _LIBRARIES / "libc.so.6",
    Path("/usr/lib/x86_64-linux-musl/libc.so"),
    *(_LIBRARIES / f"lib{name}" for name in ("jemalloc.so.2", "tcmalloc_minimal.so.4", "tcmalloc.so.4")),
    _LIBRARIES / "libmimalloc.so.2.0",
)


def main() -> int:
    """Print the table; returns the exit code."""
    paths = [Path(argument) for argument in sys.argv[1:]] or [path for path in _KNOWN if path.exists()]
    print("| file | allocator | functions | breakpoints | reached through another | single-stepped |")
    print("|---|---|---|---|---|---|")
    for path in paths:
        (file,) = Discovery(Helpers([points.__name__])).files(open_code(os.getpid(), [_mapped(path)]))
        print(_row(path, file))
    return 0


def _mapped(path: Path) -> Mapping:
    """A mapping of a file that this process has not mapped; the file is opened by its path."""
    return Mapping(0, 4096, 0, "", path.stat().st_ino, str(path.resolve()), True, False, True)


def _row(path: Path, file: ProbedFile) -> str:
    defined = _defined(path)
    probed = [function for function in file.functions if function.allocator != "ld.so"]
    allocators = sorted({function.allocator for function in probed})
    others = {function.name for function in FUNCTIONS} & defined - {f.function for f in file.functions}
    stepped = [f"`{function.function}`" for function in probed if not function.emulated]
    cells = (
        f"`{path.name}`",
        ", ".join(allocators),
        str(len(probed) + len(others)),
        str(len({function.offset for function in probed})),
        str(len(others)),
        ", ".join(stepped) or "none",
    )
    return f"| {' | '.join(cells)} |"


def _defined(path: Path) -> set[str]:
    with ElfImage.open(path) as image:
        return set(SymbolTable([image]).addresses_of([function.name for function in FUNCTIONS]))


if __name__ == "__main__":
    sys.exit(main())
