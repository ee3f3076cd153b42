"""deploy/prometheus: rules that Prometheus accepts, that work as described, about metrics that exist."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from ..export.exposition import every_family

ROOT = Path(__file__).parents[3]
RULES = ROOT / "deploy/prometheus/bpfleakd.rules.yaml"
TESTS = ROOT / "deploy/prometheus/bpfleakd.rules.test.yaml"

needs_promtool = pytest.mark.skipif(
    not shutil.which("promtool"), reason="promtool is not there: apt install prometheus"
)


def rules(kind: str) -> list[dict[str, Any]]:
    """All rules that have such a key: `alert` or `record`."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"] if kind in rule]


@needs_promtool
@pytest.mark.parametrize("arguments", [("check", "rules", RULES), ("test", "rules", TESTS)], ids=str)
def test_promtool_is_content(arguments):
    """With the syntax, and with what comes out for series that are made up."""
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_rule_is_tested():
    """An alert both when it fires and, mostly, when it does not."""
    tested = TESTS.read_text()
    assert [rule["alert"] for rule in rules("alert") if f"alertname: {rule['alert']}\n" not in tested] == []
    assert [rule["record"] for rule in rules("record") if f"expr: {rule['record']}" not in tested] == []


def test_rules_are_about_metrics_that_exist():
    """Under the names that the exposition has."""
    names = {sample.name for family in every_family() for sample in family.samples}
    names |= {rule["record"] for rule in rules("record")}
    used = {
        name for rule in rules("expr") for name in re.findall(r"[a-z_:]*bpfleakd_[a-z0-9_:]+", rule["expr"])
    }
    assert used - names == set()
    assert len(used) > 10


def test_every_alert_has_its_section_in_the_runbook():
    """The annotation leads to it."""
    headings = set(re.findall(r"^## (\w+)$", (ROOT / "docs/alerts.md").read_text(), re.MULTILINE))
    assert headings == {rule["alert"] for rule in rules("alert")}
    for rule in rules("alert"):
        assert rule["annotations"]["runbook"] == f"docs/alerts.md#{rule['alert'].lower()}"
