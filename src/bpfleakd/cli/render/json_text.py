"""JSON for standard output."""

from __future__ import annotations

import json

import msgspec

__all__ = ["json_text"]


def json_text(answer: object) -> str:
    """Return dataclasses as indented JSON in ASCII, so that no name in it can steer a terminal."""
    text = json.dumps(msgspec.to_builtins(answer), indent=2, ensure_ascii=True)
    # The one control character that JSON leaves as it is.
    return text.replace("\x7f", "\\u007f")
