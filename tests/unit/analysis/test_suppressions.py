"""Suppressions as LeakSanitizer reads them."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bpfleakd import errors
from bpfleakd.analysis.suppressions import Glob, parse_suppressions
from bpfleakd.suppressions import read_suppressions

from ..samples import a_frame, a_stack

STACK = a_stack()  # malloc in libc.so.6, leak_here and main in /usr/bin/leaky, /src/leaky.c


@pytest.mark.parametrize(
    ("pattern", "fits"),
    [
        ("leak_here", True),
        ("eak_h", True),
        ("^leak_here$", True),
        ("^eak_here", False),
        ("leak_her$", False),
        ("^l*k*e$", True),
        ("k*l*z", False),
        ("^/usr/bin/leaky$", True),
        ("libc.so", True),
        ("libcxso", False),
        ("leaky.c$", True),
        ("^/src/*.c$", True),
        ("^*$", True),
        ("Leak_here", False),
        ("leak_here|main", False),
    ],
)
def test_patterns(pattern: str, fits: bool) -> None:
    """Anywhere in function, module or source file of any frame, unless they are tied to an end."""
    assert parse_suppressions(f"leak:{pattern}", "mine").match(STACK) == (pattern if fits else None)


def test_lines() -> None:
    """Comments and empty lines are passed over; the first pattern that fits is the one that counts."""
    suppressions = parse_suppressions("# known\n\n  leak:nothing\nleak:main\r\nleak:leak_here\n", "mine")
    assert suppressions.match(STACK) == "main"
    assert suppressions.match(()) is None
    assert suppressions.match([a_frame(None, module=None, location=None)]) is None


@pytest.mark.parametrize("line", ["leak:", "race:main", "main", "leak main"])
def test_what_is_no_suppression(line: str) -> None:
    """Said with its line, since it would be missed silently."""
    with pytest.raises(errors.ConfigError, match=r"^mine:2: "):
        parse_suppressions(f"leak:a\n{line}\n", "mine")


def test_files(tmp_path) -> None:
    """Ours comes first; one that cannot be read is an error that names it."""
    path = tmp_path / "mine.supp"
    path.write_text("leak:leak_here\n")
    suppressions = read_suppressions([path])
    assert suppressions.match(STACK) == "leak_here"
    assert suppressions.match([a_frame("allocate_dtv")]) == "^allocate_dtv$"
    assert read_suppressions([]).match(STACK) is None
    with pytest.raises(errors.ConfigError, match=r"missing\.supp: cannot be read"):
        read_suppressions([tmp_path / "missing.supp"])
    path.write_bytes(b"leak:\xff\n")
    with pytest.raises(errors.ConfigError, match="not UTF-8"):
        read_suppressions([path])


@given(
    parts=st.lists(st.text("ab", max_size=3), min_size=1, max_size=4),
    tied=st.tuples(st.booleans(), st.booleans()),
    text=st.text("ab:1", max_size=12),
)
@example(parts=[""], tied=(True, True), text="1")  # no source line: it has no colon
def test_globs_are_what_regular_expressions_say(parts: list[str], tied: tuple[bool, bool], text: str) -> None:
    """Another way to say the same, which takes exponential time."""
    begins, ends = tied
    written = "^" * begins + "*".join(parts) + "$" * ends
    said = r"\A" * begins + ".*".join(map(re.escape, parts)) + r"(:\d+)?\Z" * ends
    assert Glob.parse(written).search(text) == bool(re.search(said, text))


def test_a_name_that_was_made_to_take_long() -> None:
    """Forty stars, and a name of as many characters as are looked at."""
    began_s = time.process_time()
    assert not Glob.parse("a*" * 40 + "b").search("a" * 4_096)
    assert time.process_time() - began_s < 0.5
