"""The systemd unit: its exposure score, and an explanation for each setting."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

SYSTEMD = Path(__file__).parents[3] / "deploy/systemd"
UNIT = SYSTEMD / "bpfleakd.service"
DROP_IN = SYSTEMD / "runtime-sockets.conf"


def exposure(tmp_path: Path, *drop_ins: Path) -> float:
    """The unit's score by `systemd-analyze security`, from 0 (no exposure) to 10."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze: apt install systemd")
    unit = tmp_path / UNIT.name
    unit.write_text("\n".join(path.read_text() for path in (UNIT, *drop_ins)))
    told = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", unit], capture_output=True, text=True, check=True
    )
    found = re.search(r"exposure level for \S+: ([0-9.]+)", told.stdout)
    assert found, told
    return float(found[1])


def test_the_unit_exposes_little(tmp_path):
    """By systemd's own count, in which a unit without any restriction has 9.6."""
    assert exposure(tmp_path) <= 3.1


def test_openat2_is_allowed():
    """For RestrictSUIDSGID systemd refuses it, since it cannot see the mode: no perf map could be opened."""
    assert not re.search("^RestrictSUIDSGID", UNIT.read_text(), re.MULTILINE)


def test_a_capability_for_an_optional_feature_is_not_in_the_unit(tmp_path):
    """It is in the drop-in, which explains its use and its risk, and adds nothing else."""
    lines = DROP_IN.read_text().splitlines()
    settings = [line for line in lines if line and not line.startswith("#")]
    assert settings == ["[Service]", "CapabilityBoundingSet=CAP_DAC_OVERRIDE CAP_KILL"]
    assert "CAP_DAC_OVERRIDE" not in UNIT.read_text()
    comment = "\n".join(line for line in lines if line.startswith("#"))
    assert "What it is for" in comment
    assert "What it costs" in comment
