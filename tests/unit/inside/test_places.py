"""The path of libbpfleak.so: the package, the documents and `bpfleakctl run` agree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bpfleakd.cli import inside_library

ROOT = Path(__file__).parents[3]


def test_run_looks_where_the_package_has_it():
    """scripts/build-deb installs it below the environment of the commands."""
    script = (ROOT / "scripts" / "build-deb").read_text()
    (home,) = re.findall(r"^readonly home=(\S+)$", script, re.MULTILINE)

    assert f'build/inside/libbpfleak.so "$tree/$home/{inside_library.LIBRARY}"' in script
    assert Path("/", home, inside_library.LIBRARY) in inside_library._PLACES


@pytest.mark.parametrize("document", ["docs/inside.md", "deploy/systemd/inside.conf"])
def test_documents_preload_it_from_there(document):
    """Every path in the documents is where the package puts it."""
    preloaded = re.findall(r"LD_PRELOAD=(/\S+)", (ROOT / document).read_text())

    assert preloaded
    assert all(Path(path) in inside_library._PLACES for path in preloaded)
