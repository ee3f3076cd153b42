"""Names that others chose, made safe to show: of processes, threads, files and functions.

A traced program picks its own name and symbols, and we show them on root's terminal and in root's
journal. Escape sequences, line breaks, text-direction marks and undecodable bytes become visible escapes.
"""

from __future__ import annotations

from typing import Any

_ELLIPSIS = "…"


def printable(text: str) -> str:
    """Return `text` with every character that is not a visible one (or a space) as a \\x or \\u escape."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else _escaped(character) for character in text)


def shortened(text: str, max_chars: int, *, keep_end: bool = False) -> str:
    """Return `text` cut to `max_chars`, an ellipsis in place of its end.

    `keep_end`: of its start, as for paths, without half the name of a directory: "…/lib/libfoo.so".
    """
    if len(text) <= max_chars:
        return text
    if keep_end:
        kept = text[len(text) - max_chars + 1 :]
        return _ELLIPSIS + kept[max(kept.find("/", 0, len(kept) // 2), 0) :]
    return text[: max_chars - 1] + _ELLIPSIS


def without_surrogates(value: Any) -> Any:
    """Return plain values (dicts, lists, texts, …) with every text in them made printable."""
    if isinstance(value, str):
        return value if value.isprintable() else printable(value)
    if isinstance(value, dict):
        return {without_surrogates(key): without_surrogates(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_surrogates(item) for item in value]
    return value


def _escaped(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:
        # How Python carries a byte that is not UTF-8 (PEP 383).
        code -= 0xDC00
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
