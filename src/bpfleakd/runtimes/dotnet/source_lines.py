"""File and line of a .NET process' methods, by portable PDBs; helpers parse them.

A PDB is in the assembly, or beside it with the name of the assembly. The assemblies of the shared framework
have none, nor do those of programs published without one.
"""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Callable, Mapping

import structlog

from bpfleakd.printable import printable, shortened
from bpfleakd.process.files.rooted_open import TargetRoot
from bpfleakd.runtimes.dotnet.line_jobs import LINES_JOB, POINT, MethodLines
from bpfleakd.runtimes.dotnet.method_look import Methods
from bpfleakd.runtimes.dotnet.stream_jobs import CodePart
from bpfleakd.sandbox.channel import HelperFailed
from bpfleakd.sandbox.helpers import Helpers

log = structlog.get_logger()

Lines = tuple[tuple[int, str, int], ...]
"""From each native offset on, a file and a line."""
LinesOfMethods = Mapping[int, Lines]
"""By the place of a method in `Methods.code`."""
LineSource = Callable[[Methods], LinesOfMethods]

_FRAMEWORK = "/shared/Microsoft."
_LIMIT_S = 10.0
_ANSWER_BYTES_MAX = 64 << 20
_MODULES_MAX = 500
_PATH_MAX_CHARACTERS = 512


class PdbLines:
    """The PDBs of one process, whose files are below `root`. A module without one is not opened again."""

    def __init__(self, helpers: Helpers, root: TargetRoot) -> None:
        self._helpers = helpers
        self._root = root
        self._without: set[str] = set()

    def __call__(self, methods: Methods) -> LinesOfMethods:
        """The lines of all methods with lines. Waits for files."""
        by_module: dict[int, list[int]] = defaultdict(list)
        for place, code in enumerate(methods.code):
            by_module[code.module_id].append(place)
        found: dict[int, Lines] = {}
        for module_id, places in by_module.items():
            path = methods.modules.get(module_id, "")
            if not path.startswith("/") or _FRAMEWORK in path or path in self._without:
                continue
            answer = self._of_module(path, [methods.code[place] for place in places])
            if answer is None and len(self._without) < _MODULES_MAX:
                self._without.add(path)
            if answer is not None:
                files = [_shown(file) for file in answer.files]
                for place, points in zip(places, answer.points, strict=False):
                    if lines := _unpacked(points, files):
                        found[place] = lines
        return found

    def _of_module(self, path: str, code: list[CodePart]) -> MethodLines | None:
        with contextlib.ExitStack() as files:
            opened: list[int] = []
            for name in (path, os.path.splitext(path)[0] + ".pdb"):
                try:
                    opened.append(self._root.open_regular(name))
                except OSError:
                    break
                files.callback(os.close, opened[-1])
            if not opened:
                return None
            asked = [(one.token, one.il_map) for one in code]
            try:
                for answer in self._helpers.answers(
                    LINES_JOB, asked, opened, MethodLines, limit_s=_LIMIT_S, bytes_max=_ANSWER_BYTES_MAX
                ):
                    return answer
            except HelperFailed as error:
                log.info("dotnet.no-lines", module=printable(path), reason=printable(str(error)))
        return None


def _unpacked(points: bytes, files: list[str]) -> Lines:
    whole = points[: len(points) - len(points) % POINT.size]
    return tuple(
        (offset, files[place], line) for offset, place, line in POINT.iter_unpack(whole) if place < len(files)
    )


def _shown(path: str) -> str:
    """The name of a source file; its path may come from any operating system."""
    return shortened(printable(path.replace("\\", "/").rsplit("/", 1)[-1]), _PATH_MAX_CHARACTERS)
