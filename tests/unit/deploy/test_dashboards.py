"""deploy/grafana: dashboards that are what their script writes, about metrics that exist."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ..export.exposition import every_family

GRAFANA = Path(__file__).parents[3] / "deploy/grafana"
DASHBOARDS = sorted((GRAFANA / "dashboards").glob("*.json"))


def test_dashboards_are_what_the_script_writes(tmp_path):
    """Made with Grafana's SDK, which rejects wrong keys: deploy/grafana/build.py regenerates them."""
    pytest.importorskip("grafana_foundation_sdk", reason="make setup FOR=test")
    subprocess.run([sys.executable, GRAFANA / "build.py", tmp_path], check=True)
    written = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert written == {path.name: path.read_text() for path in DASHBOARDS}


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_panels_are_about_metrics_that_exist(path):
    """Every panel has a title, a description, and a query of an exported metric."""
    names = {sample.name for family in every_family() for sample in family.samples}
    dashboard = json.loads(path.read_text())
    assert dashboard["uid"] == f"bpfleakd-{path.stem}"
    for panel in dashboard["panels"]:
        assert panel["title"]
        assert panel["description"]
        for target in panel["targets"]:
            used = set(re.findall(r"\b(?:bpfleakd|process)_[a-z0-9_]+", target["expr"]))
            assert used
            assert used - names == set()


def test_provisioning_is_yaml():
    """Of version 1, as Grafana requires."""
    files = list((GRAFANA / "provisioning").rglob("*.yaml"))
    assert len(files) == 2
    assert all(yaml.safe_load(path.read_text())["apiVersion"] == 1 for path in files)
