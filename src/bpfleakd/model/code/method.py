"""Methods of managed programs, as runtimes name them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Protocol

from msgspec import Struct

from bpfleakd.model.code.managed_frame import ManagedFrame
from bpfleakd.model.code.stack import FrameKind

# A type and a method follow the assembly; they do not follow the bracket of an array or a generic type.
_DOTNET_ASSEMBLY = re.compile(r"(?:^| )\[([^\[\]/]{1,256})\] (?=[^()]*::)")

# Includes its strings, without the text. A character has at most 4 bytes.
_METHOD_BYTES = 300


class Method(Struct, frozen=True):
    """A method, or a line of one, as a frame shows it. `module` is its assembly, package or script.

    `is_library`: it belongs to an installed package.
    """

    name: str
    module: str | None = None
    file: str | None = None
    line: int | None = None
    is_library: bool = False

    @property
    def location(self) -> str | None:
        """File and line, separated by a colon; None if either is unknown."""
        return f"{self.file}:{self.line}" if self.file and self.line else None


def methods_bytes(methods: Iterable[Method]) -> int:
    """The approximate memory of these methods."""
    return sum(
        _METHOD_BYTES + 4 * sum(len(text) for text in (one.name, one.module, one.file) if text)
        for one in methods
    )


class MethodSource(Protocol):
    """Names for code that is generated at run time.

    `generation` changes when an address may have another name. `failure` is the reason for missing names, as
    the end of a sentence about the process; None if there are names. `is_live`: it reads the current state of
    the process, which takes precedence over a perf map, and may be gone when it is needed.
    """

    generation: int
    is_live: bool

    @property
    def failure(self) -> str | None: ...

    def refresh(self, now_ns: int) -> None:
        """Read code generated since the last call; cheap if there is none."""

    def find(self, address: int) -> Sequence[Method] | None:
        """The methods at an address, innermost (inlined) first; None if unknown.

        Empty for code that the runtime itself hides.
        """


class FrameNames(Protocol):
    """Names for the words that the stack walker records for managed frames."""

    def note(self, words: Iterable[int]) -> None:
        """Read the functions of these words now, because they may be gone when the stack is shown."""

    def find(self, words: Sequence[int], checks: Sequence[int]) -> Sequence[tuple[Method, ...] | None]:
        """The methods of each of a stack's frames, innermost first; None for an unknown one.

        `checks` are RawStack.checks. A frame that the runtime itself hides is empty.
        """

    def address_of(self, word: int) -> int:
        """The address in the process that a word refers to."""


class ManagedNames(Protocol):
    """Names for managed frames. `kind` is their kind, which decides how they enter a site's fingerprint."""

    kind: FrameKind

    def note(self, frames: Iterable[ManagedFrame]) -> None:
        """Read the functions of these frames now, because they may be gone when the stack is shown."""

    def find(self, frame: ManagedFrame) -> Sequence[Method]:
        """The methods of a frame, innermost (inlined) first; never empty."""


def dotnet_assembly(name: str) -> str | None:
    """The assembly of a .NET method, as a perf map names it; None for other names."""
    found = _DOTNET_ASSEMBLY.search(name)
    return found[1] if found else None
