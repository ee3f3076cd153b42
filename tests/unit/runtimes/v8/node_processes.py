"""A /proc with one Node.js process."""

from __future__ import annotations

from pathlib import Path


def write_process(proc: Path, words: list[str], options: str) -> None:
    """Process 1, with words on its command line and NODE_OPTIONS."""
    (proc / "1").mkdir()
    (proc / "1/cmdline").write_bytes(b"\0".join(word.encode() for word in ["node", *words]) + b"\0")
    (proc / "1/environ").write_bytes(b"A=B\0NODE_OPTIONS=" + options.encode() + b"\0")
