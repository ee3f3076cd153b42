"""Names of functions, which come from files that anybody may have written, as text that can be shown."""

from __future__ import annotations

__all__ = ["NAME_LIMIT_CHARACTERS", "printable_name"]

# The longest C++ names of real programs are longer, but nobody reads the end of them.
NAME_LIMIT_CHARACTERS = 4_096


def printable_name(raw: bytes, limit: int = NAME_LIMIT_CHARACTERS) -> str:
    """Decode a name: at most `limit` characters, invalid UTF-8 and control characters replaced.

    Names end up on terminals, in logs and in Prometheus labels: an escape sequence must not get there.
    """
    text = raw[: 4 * limit].decode(errors="replace")[:limit]
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
