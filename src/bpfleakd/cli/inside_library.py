"""The place of libbpfleak.so, and the environment that loads it into a program."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from bpfleakd import errors

LIBRARY = "libbpfleak.so"
# A checkout has src/bpfleakd/cli; an environment with the package has lib/bpfleakd.
_PLACES = (
    Path(sys.prefix) / "lib" / "bpfleakd" / LIBRARY,
    Path("/usr/lib/bpfleakd") / LIBRARY,
    Path(__file__).parents[3] / "build" / "inside" / LIBRARY,
)


def library_path() -> Path:
    """The library. Raises BpfleakdError if it is nowhere."""
    for place in _PLACES:
        if place.is_file():
            return place
    raise errors.BpfleakdError(
        f"{LIBRARY} is in none of {', '.join(str(place.parent) for place in _PLACES)}",
        "`make inside` builds it in a checkout; the package has it in /usr/lib/bpfleakd",
    )


def environment_with(
    library: Path, interval_bytes: int | None, before: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """The environment of a program that samples itself: adds the library before others to preload."""
    environment = dict(before)
    others = environment.get("LD_PRELOAD", "")
    environment["LD_PRELOAD"] = f"{library}:{others}" if others else str(library)
    if interval_bytes is not None:
        environment["BPFLEAK_SAMPLE_INTERVAL"] = str(interval_bytes)
    return environment
