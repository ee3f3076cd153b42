"""The BPF source as one text, and its location.

bcc rewrites map accesses in the main file only. So the headers with map accesses are inserted into it, as the
C preprocessor does, with #line marks so that compiler messages name the right file.
"""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

_MAIN = "bpfleakd.bpf.c"
_INCLUDE = re.compile(r'\s*#\s*include\s+"([^"/]+)"')


def bpf_directory() -> Path:
    """The directory of the BPF sources: in the installed package, else next to `src/` in a checkout.

    Raises FileNotFoundError if it is in neither place.
    """
    package = Path(str(resources.files("bpfleakd")))
    for candidate in (package / "bpf", package.parents[1] / "bpf"):
        if (candidate / _MAIN).is_file():
            return candidate
    raise FileNotFoundError(f"no {_MAIN} in {package / 'bpf'} or {package.parents[1] / 'bpf'}")


def flattened(directory: Path, name: str = _MAIN) -> str:
    """The text of a source file, with its quoted includes replaced by their content."""
    lines = [f'#line 1 "{name}"']
    for number, line in enumerate((directory / name).read_text().splitlines(), start=1):
        include = _INCLUDE.match(line)
        if include:
            lines += [flattened(directory, include[1]).rstrip("\n"), f'#line {number + 1} "{name}"']
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"
