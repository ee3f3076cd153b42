"""Tables in documents that a measurement writes."""

from __future__ import annotations

from pathlib import Path

_ROOT = Path(__file__).parents[1]


def rewritten(document: str, mark: str, text: str) -> None:
    """Replace the text between `<!-- MARK: begin -->` and `<!-- MARK: end -->`. Raises ValueError."""
    path = _ROOT / document
    begin, end = f"<!-- {mark}: begin -->\n", f"<!-- {mark}: end -->\n"
    before, found, rest = path.read_text().partition(begin)
    _old, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"{document} has no place for {mark}")
    path.write_text(f"{before}{begin}{text}{end}{after}")
