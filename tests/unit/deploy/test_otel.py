"""The configuration for the OpenTelemetry Collector: its components exist, and its targets are right."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

COLLECTOR = Path(__file__).parents[3] / "deploy/otel/collector.yaml"


def test_the_pipeline_is_of_parts_that_are_there():
    """And all of them are in it."""
    config = yaml.safe_load(COLLECTOR.read_text())
    assert set(config) == {"receivers", "processors", "exporters", "service"}
    (pipeline,) = config["service"]["pipelines"].values()
    assert pipeline == {kind: list(config[kind]) for kind in ("receivers", "processors", "exporters")}
    assert list(config["service"]["pipelines"]) == ["metrics"]


def test_prometheus_takes_what_its_receiver_is_given(tmp_path):
    """It is a configuration of Prometheus, which the receiver reads with Prometheus' own code."""
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed: make setup FOR=test")
    receiver = yaml.safe_load(COLLECTOR.read_text())["receivers"]["prometheus"]
    assert set(receiver) == {"config"}
    path = tmp_path / "prometheus.yaml"
    path.write_text(yaml.safe_dump(receiver["config"]))
    done = subprocess.run(["promtool", "check", "config", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (job,) = receiver["config"]["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["127.0.0.1:9797"]}]
