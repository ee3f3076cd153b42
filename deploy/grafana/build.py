"""Writes the dashboards: `build.py [DIRECTORY]`, by default the one beside this file.

The dashboards in the repository are what this writes; a test compares them. Made with Grafana's own SDK, so
that keys are right: `make setup FOR=test` installs it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from hosts import hosts
from process import process

from daemon import daemon


def main() -> None:
    """Write all of them."""
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "dashboards"
    for made in (hosts(), process(), daemon()):
        built = made.build()
        for number, panel in enumerate(built.panels, start=1):
            panel.id_val = number
        text = JSONEncoder(sort_keys=True, indent=1, ensure_ascii=False).encode(built)
        (directory / f"{built.uid.removeprefix('bpfleakd-')}.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
