"""Metrics, scraped by a real Prometheus from a real daemon that traces programs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from bpfleakd.api.client import DaemonClient
from bpfleakd.config import MetricsConfig

from .conftest import place_of_daemon
from .daemons import Daemon
from .machine import need_tool
from .ports import free_port
from .prometheus_server import PrometheusServer
from .waiting import wait_until
from .workloads import Workload, build

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy/prometheus/bpfleakd.rules.yaml"
DASHBOARDS = ROOT / "deploy/grafana/dashboards"
# Values for Grafana's variables.
VARIABLES = {"instance": ".*", "comm": "growing", "__rate_interval": "10s", "__range": "30s"}

BLOCK_BYTES = 101 << 10
LEAK = 'function="never_freed"'


@dataclass
class Scene:
    """A program that leaks and a healthy one, traced by a daemon, scraped by Prometheus."""

    tracer: Daemon
    prometheus: PrometheusServer
    leaking: Workload
    steady: Workload
    url: str


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """The one scene of all tests of this file; it has been under way long enough for a verdict."""
    port = free_port()
    directory, bpffs_dir, configuration = place_of_daemon(tmp_path_factory)
    configuration |= {
        "metrics": {"enabled": True, "port": port, "details": True},
        "history": {"window_s": 5, "leak_after_s": 10},
    }
    running, programs, prometheus = Daemon(directory, bpffs_dir, configuration), [], None
    try:
        programs = [Workload([build("growing"), mode]) for mode in ("leak", "steady")]
        running.start()
        prometheus = PrometheusServer(directory, [f"127.0.0.1:{port}"], RULES, profiles=True)
        for program in programs:
            running.attach_with_tables(program.pid)
            program.start_step(10_000)
        scene = Scene(running, prometheus, *programs, f"http://127.0.0.1:{port}")
        wait_until(lambda: prometheus.query("bpfleakd_process_limit_reached_seconds"), 60)
        wait_until(lambda: prometheus.query('bpfleakd_site_verdict{verdict="leak"}'), 60)
        yield scene
        running.stop()
    finally:
        if prometheus is not None:
            prometheus.stop()
        if running.is_alive:
            running.kill()
        shutil.rmtree(bpffs_dir, ignore_errors=True)
        for program in programs:
            program.kill()


def test_prometheus_takes_all_of_it(scene: Scene):
    """Every scrape succeeds, and has the leak with its site and rate."""
    (target,) = targets_of(scene, "bpfleakd")
    assert (target["health"], target["lastError"]) == ("up", "")
    assert scene.prometheus.value("bpfleakd_processes_traced") == 2
    (verdict,) = scene.prometheus.query(f"bpfleakd_site_verdict{{{LEAK}}}")
    assert verdict["metric"]["verdict"] == "leak"
    # The leak's rate is that since the attach, and the program begins some seconds after it.
    wait_until(lambda: _leak_rate(scene) == pytest.approx(_allocation_rate(scene), rel=0.3), 60)
    assert _allocation_rate(scene) == pytest.approx(50 * BLOCK_BYTES, rel=0.5)


def _allocation_rate(scene: Scene) -> float:
    return scene.prometheus.value(f"rate(bpfleakd_site_allocated_bytes_total{{{LEAK}}}[10s])")


def _leak_rate(scene: Scene) -> float:
    return scene.prometheus.value(f"bpfleakd_site_leak_bytes_per_second{{{LEAK}}}")


def targets_of(scene: Scene, job: str) -> list[dict]:
    """The targets that Prometheus scrapes in a job."""
    return [
        target for target in scene.prometheus.get("targets")["activeTargets"] if target["scrapePool"] == job
    ]


def test_every_process_is_discovered(scene: Scene):
    """By Prometheus' HTTP service discovery: one target each, with the URL of its profile."""
    urls = {f"{scene.url}/debug/pprof/heap?pid={program.pid}" for program in (scene.leaking, scene.steady)}
    wait_until(lambda: {target["scrapeUrl"] for target in targets_of(scene, "profiles")} == urls)
    for url in urls:
        with urllib.request.urlopen(url, timeout=30) as answer:
            assert answer.read(2) == b"\x1f\x8b"
    (labels,) = {
        (target["labels"]["comm"], target["labels"]["service_name"])
        for target in targets_of(scene, "profiles")
    }
    assert labels == ("growing", "growing")


def test_a_site_leads_to_its_stack(scene: Scene):
    """By the fingerprint; also for the two processes that are one under their labels."""
    (site,) = scene.prometheus.query(
        f"bpfleakd_site_live_bytes{{{LEAK}}} * on (instance, site) group_left (stack) bpfleakd_site_info"
    )
    stack = site["metric"]["stack"].split(";")
    assert stack[-1] == "malloc"
    assert {"main", "never_freed"} < set(stack)
    pids = {row["metric"]["pid"] for row in scene.prometheus.query("bpfleakd_process_info")}
    assert pids == {str(scene.leaking.pid), str(scene.steady.pid)}
    assert scene.prometheus.value('bpfleakd_process_traced{comm="growing"}') == 2


def test_the_bill_is_that_of_the_memory(scene: Scene):
    """The bill is made again when memory has changed by a tenth; until then it may be off by that much."""
    memory = "max by (pid) (bpfleakd_process_anonymous_bytes{comm='growing'})"
    bill = "sum by (pid) (bpfleakd_process_bill_bytes{kind=~'heap_.+',comm='growing'})"
    wait_until(lambda: scene.prometheus.query(f"{bill} / {memory} > 0.8"))
    assert scene.prometheus.query(f"{bill} / {memory} > 1.25") == []


def test_the_series_stay_below_the_limit(scene: Scene):
    """As Prometheus counts them."""
    count = 'count({__name__=~"bpfleakd_(process|site)_.+"})'
    assert 30 < scene.prometheus.value(count) < MetricsConfig().max_series
    assert scene.prometheus.value("bpfleakd_table_entries{table='sites'}") >= 2


def test_many_processes_stay_below_the_limit(daemon, workload):
    """Two dozen, with room for the series of a few: the others are one, and nothing is missing in it."""
    port = free_port()
    tracer = daemon(metrics={"enabled": True, "port": port, "max_series": 1000, "labels": ["comm", "pid"]})
    client = DaemonClient(tracer.socket)
    programs = [workload("growing", "leak") for _ in range(24)]
    for program in programs:
        client.attach(program.pid)
        program.start_step(1)

    def figures() -> list[tuple[str, float]]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        return [(line.rpartition(" ")[0], float(line.rpartition(" ")[2])) for line in lines if line[0] != "#"]

    wait_until(
        lambda: (
            sum(n for name, n in figures() if name.startswith("bpfleakd_process_live_bytes"))
            == 24 * BLOCK_BYTES
        )
    )
    names = [name for name, _number in figures()]
    assert sum(name.startswith(("bpfleakd_process_", "bpfleakd_site_")) for name in names) <= 1000
    assert sum(name.startswith("bpfleakd_process_live_bytes{") for name in names) < 24


def test_promtool_has_nothing_to_say(scene: Scene):
    """For the metrics of a working daemon."""
    with urllib.request.urlopen(f"{scene.url}/metrics", timeout=30) as answer:
        done = subprocess.run(
            [need_tool("promtool"), "check", "metrics"], input=answer.read(), capture_output=True, check=False
        )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_the_rules_run(scene: Scene):
    """All of them are evaluated without an error, and the leak is one row of the recording rules."""
    groups = scene.prometheus.get("rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) > 10
    assert [rule for rule in rules if rule["health"] == "err"] == []
    (row,) = wait_until(lambda: scene.prometheus.query(f"site:bpfleakd_leak_bytes_per_second:sum{{{LEAK}}}"))
    assert float(row["value"][1]) > 10 * BLOCK_BYTES


@pytest.mark.parametrize("name", ["hosts", "process", "daemon"])
def test_every_panel_has_data(scene: Scene, name: str):
    """Each expression of each panel, and each list of values of a variable."""
    dashboard = json.loads((DASHBOARDS / f"{name}.json").read_text())
    expressions = [
        (panel["title"], filled_in(target["expr"]))
        for panel in dashboard["panels"]
        for target in panel["targets"]
    ]
    assert len(expressions) > 10
    empty = [each for each in expressions if not scene.prometheus.query(each[1])]
    # Some need a few ticks more than the verdict.
    for _title, expression in empty:
        wait_until(lambda expression=expression: scene.prometheus.query(expression), 20)
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            found = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"])
            assert found, variable
            rows = scene.prometheus.query(filled_in(found[1]))
            assert all(row["metric"][found[2]] for row in rows)
            assert rows


def filled_in(expression: str) -> str:
    """An expression without variables; fails for one that is not known."""
    return re.sub(r"\$(\w+)", lambda match: VARIABLES[match[1]], expression)


def test_a_process_that_ends_leaves_its_counts(scene: Scene):
    """Its allocations up to its end are in the counters, which never decrease; its memory is not."""
    allocations, live, traced = (
        f'bpfleakd_process_{name}{{comm="every_function"}}'
        for name in ("allocations_total", "live_bytes", "traced")
    )
    program = Workload([build("every_function"), "2"])
    try:
        scene.tracer.attach_with_tables(program.pid)
        ledger = program.step()
        program.exit()
    finally:
        program.kill()
    # Before its first scrape, an earlier one of that name may be there, without any.
    wait_until(lambda: scene.prometheus.query(f"{traced} == 0 and {live} == 0 and {allocations} > 0"))
    # Those of the C library for itself are in the daemon's count, but not in the ledger.
    known = sum(site["allocated_count"] or 0 for site in ledger["sites"].values())
    counted = scene.tracer.process(program.pid)["process"]["allocated_count"]
    assert scene.prometheus.value(allocations) == counted >= known > 1_000
