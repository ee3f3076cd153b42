"""The Debian package, built from this checkout, with its dependencies."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]


def build_package(directory: Path) -> Path:
    """Build the wheel and the package of it; returns the package."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    _run([*pip, "wheel", "--no-deps", "--wheel-dir", str(directory), str(CHECKOUT)])
    (wheel,) = directory.glob("*.whl")
    environment = {**os.environ, "PYTHON": sys.executable}
    output = _run([str(CHECKOUT / "scripts/build-deb"), str(wheel), str(directory)], environment)
    return Path(output.splitlines()[-1])


def with_version(package: Path, version: str) -> Path:
    """Return the same package with another version, as the next release would have."""
    tree = package.parent / f"tree-{version}"
    _run(["dpkg-deb", "--raw-extract", str(package), str(tree)])
    control = tree / "DEBIAN/control"
    lines = control.read_text().splitlines()
    control.write_text(
        "".join(f"Version: {version}\n" if line.startswith("Version:") else f"{line}\n" for line in lines)
    )
    other = package.parent / f"bpfleakd_{version}_next.deb"
    _run(["dpkg-deb", "--root-owner-group", "-Zgzip", "--build", str(tree), str(other)])
    return other


def download_dependencies(package: Path, directory: Path) -> None:
    """Put the packages that it needs and this machine lacks into `directory`; nothing is installed."""
    (directory / "partial").mkdir(parents=True, exist_ok=True)
    options = ["-o", f"Dir::Cache::archives={directory}", "-o", "Acquire::Retries=3"]
    _run(
        ["apt-get", *options, "install", "--yes", "--no-install-recommends", "--download-only", str(package)]
    )


def _run(command: list[str], environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, (
        f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    )
    return done.stdout
