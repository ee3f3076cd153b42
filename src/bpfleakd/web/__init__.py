"""Pages, scripts and styles that are served or written into files: `asset` reads them from the package."""

from __future__ import annotations

from importlib.resources import files


def asset(name: str) -> str:
    """Return the text of a file in here, such as "vendor/flamegraph.js". Raises FileNotFoundError."""
    return files(__name__).joinpath(name).read_text(encoding="utf-8")
