"""The configurations for Parca and Pyroscope: their keys, the path, and how a pid gets into the URL."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

DEPLOY = Path(__file__).parents[3] / "deploy"
HEAP = "/debug/pprof/heap"
OTHERS = {"block", "goroutine", "mutex", "process_cpu"}


def test_parca_takes_the_heap_profile_only():
    """Those that are on by default are Go's, and would be failed scrapes here."""
    (job,) = yaml.safe_load((DEPLOY / "parca/parca.yaml").read_text())["scrape_configs"]
    profiles = job["profiling_config"]["pprof_config"]
    assert (profiles["memory"]["enabled"], profiles["memory"]["path"]) == (True, HEAP)
    assert {name for name, profile in profiles.items() if profile["enabled"] is False} == OTHERS
    # Parca's keys, of those that it has (pkg/config/config.go); it refuses any other.
    assert set(job) <= {
        "job_name",
        "scrape_interval",
        "profiling_config",
        "http_sd_configs",
    }
    (discovery,) = job["http_sd_configs"]
    assert discovery["url"].endswith("/v1/targets")


def test_alloy_takes_the_heap_profile_only():
    """In blocks that are closed, joined by names that exist."""
    text = re.sub(r"^\s*//.*$", "", (DEPLOY / "pyroscope/config.alloy").read_text(), flags=re.MULTILINE)
    assert text.count("{") == text.count("}")
    assert re.search(rf'profile\.memory {{\s+enabled = true\s+path    = "{HEAP}"\s+}}', text)
    assert set(re.findall(r"profile\.(\w+) {\s+enabled = false\s+}", text)) == OTHERS
    components = set(re.findall(r'^([a-z_.]+) "(\w+)" {', text, re.MULTILINE))
    used = re.findall(r"= \[?((?:discovery|pyroscope)\.[a-z]+)\.(\w+)\.(?:targets|output|receiver)", text)
    assert len(used) == 2
    assert set(used) <= components
    assert re.search(r'url\s+= "http://127.0.0.1:9797/v1/targets"', text)
