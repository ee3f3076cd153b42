"""Suppressions in LeakSanitizer's syntax: known leaks that reports omit.

    # a comment
    leak:OldCache::*
    leak:^libthird_party.so

A line is a pattern that is searched for in the function, the file's path (module) and the source file of
every frame. It may match anywhere in them, unless it begins with ^ or ends with $; * matches any text.
(clang's LeakSanitizer documentation; TemplateMatch in sanitizer_common)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from bpfleakd.errors import ConfigError
from bpfleakd.model.code.stack import Frame

_TYPE = "leak:"


class Glob(Struct, frozen=True):
    """A pattern, split at its stars; the search takes linear time, since a process chooses the text."""

    parts: tuple[str, ...]
    begins: bool
    ends: bool

    @classmethod
    def parse(cls, pattern: str) -> Glob:
        """Parse a pattern."""
        begins, ends = pattern.startswith("^"), pattern.endswith("$")
        return cls(tuple(pattern[begins : len(pattern) - ends].split("*")), begins, ends)

    def search(self, text: str) -> bool:
        """Whether the pattern occurs in a text."""
        if not self.ends:
            return self._fits(text)
        # A source line is "file:number": the file's name ends before the colon.
        file, colon, number = text.rpartition(":")
        return self._fits(text) or (bool(colon) and number.isdecimal() and self._fits(file))

    def _fits(self, text: str) -> bool:
        *parts, last = self.parts
        position = 0
        for number, part in enumerate(parts):
            found = text.find(part, position)
            if found < 0 or (number == 0 and self.begins and found > 0):
                return False
            position = found + len(part)
        if self.ends:
            start = len(text) - len(last)
            is_tied = self.begins and not parts
            return start >= position and text.endswith(last) and (start == 0 or not is_tied)
        if self.begins and not parts:
            return text.startswith(last)
        # The first occurrence of each part leaves most room for the others, so no other needs to be tried.
        return text.find(last, position) >= 0


class Suppressions(Struct, frozen=True):
    """Patterns, as they were written and as they are searched for."""

    patterns: tuple[tuple[str, Glob], ...] = ()

    def match(self, stack: Sequence[Frame]) -> str | None:
        """The first pattern that matches a frame; None if none matches."""
        texts = [text for frame in stack for text in (frame.function, frame.module, frame.location) if text]
        # One search for a part of the pattern excludes nearly all patterns.
        joined = "\n".join(texts)
        for written, pattern in self.patterns:
            if pattern.parts[0] in joined and any(pattern.search(text) for text in texts):
                return written
        return None

    def joined(self, others: Iterable[Suppressions]) -> Suppressions:
        """These and the patterns of others."""
        return Suppressions(self.patterns + tuple(one for other in others for one in other.patterns))


NO_SUPPRESSIONS = Suppressions()


def parse_suppressions(text: str, source: str) -> Suppressions:
    """Parse the lines of a file; `source` is its name. Raises ConfigError that names the invalid line."""
    patterns = []
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        if not line.startswith(_TYPE) or line == _TYPE:
            raise ConfigError(
                f"{source}:{number}: {line[:60]!r} is not a suppression", "a line is leak:PATTERN"
            )
        written = line.removeprefix(_TYPE)
        patterns.append((written, Glob.parse(written)))
    return Suppressions(tuple(patterns))
