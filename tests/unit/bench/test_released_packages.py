"""The releases that are known to leak, and the documents that tables are written to."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench import documents
from bench.released_packages import RELEASED_LEAKS, Registry, ReleasedLeak


@pytest.mark.parametrize("leak", RELEASED_LEAKS, ids=lambda leak: leak.leaks)
def test_releases_are_pinned(leak: ReleasedLeak) -> None:
    """Each by a version of the same packages; and the program defines the function that is called."""
    mark = {Registry.PYPI: "==", Registry.NPM: "@", Registry.DEBIAN: "/"}[leak.registry]
    leaks, repaired = ([one.partition(mark) for one in text.split()] for text in (leak.leaks, leak.repaired))
    assert all(pin for _name, _mark, pin in (*leaks, *repaired))
    assert leak.repaired != leak.leaks
    if leak.registry is Registry.DEBIAN:
        # A release of Debian keeps the version of a package that it has in its name.
        assert all(pin[-1].isdigit() for _suite, _mark, pin in (*leaks, *repaired))
        assert "def step(number)" in leak.program
        return
    assert not repaired or [name for name, *_ in repaired] == [name for name, *_ in leaks]
    if leak.registry is Registry.NPM:
        assert "function step(number)" in leak.program
        return
    assert leak.blamed
    assert "step" in compile(leak.program, leak.leaks, "exec").co_names


def test_a_table_takes_the_place_of_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its marks; a document without them is an error."""
    monkeypatch.setattr(documents, "_ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- it: begin -->\nold\n<!-- it: end -->\nafter\n")
    documents.rewritten("page.md", "it", "new\n")
    assert page.read_text() == "before\n<!-- it: begin -->\nnew\n<!-- it: end -->\nafter\n"
    with pytest.raises(ValueError, match="has no place for other"):
        documents.rewritten("page.md", "other", "new\n")
