"""The metrics, read back by a parser."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from bpfleakd.export.prometheus import PrometheusExporter
from bpfleakd.model import GuardStats, MetricsSnapshot, ProcessState, WatchSummary

from ..samples import HOSTILE, a_process, a_site, a_snapshot, a_traced_process, a_watched_process, some_stats


def exporter(snapshot: MetricsSnapshot, top_sites: int = 10) -> PrometheusExporter:
    return PrometheusExporter(lambda: snapshot, top_sites=top_sites)


def samples(snapshot: MetricsSnapshot, top_sites: int = 10) -> dict[tuple, float]:
    """Return {(name, labels): value}; fail for a label set that occurs twice, as Prometheus does."""
    body, _ = exporter(snapshot, top_sites).expose()
    read = [sample for family in parse_text(body.decode()) for sample in family.samples]
    keys = [(sample.name, frozenset(sample.labels.items())) for sample in read]
    assert [key for key, count in Counter(keys).items() if count > 1] == []
    return dict(zip(keys, (sample.value for sample in read), strict=True))


def value(read: dict[tuple, float], name: str, **labels: str) -> float:
    return read[(name, frozenset(labels.items()))]


def named(read: dict[tuple, float], prefix: str) -> list[tuple]:
    return [key for key in read if key[0].startswith(prefix)]


def test_every_figure_of_a_process_is_there():
    """With its unit in the name, and `_total` on what only rises."""
    losses = {"live_full": 29, "stack_full": 0}
    read = samples(a_snapshot(a_traced_process(losses=losses)))
    labels = {"pid": "4711", "comm": "leaky"}
    assert value(read, "bpfleakd_process_live_bytes", **labels) == 5_000_011
    assert value(read, "bpfleakd_process_live_allocations", **labels) == 10_007
    assert value(read, "bpfleakd_process_peak_live_bytes", **labels) == 6_000_011
    assert value(read, "bpfleakd_process_growth_bytes_per_second", **labels) == 8_009
    assert value(read, "bpfleakd_process_allocated_bytes_total", **labels) == 7_000_003
    assert value(read, "bpfleakd_process_allocations_total", **labels) == 15_013
    assert value(read, "bpfleakd_process_frees_total", **labels) == 5_003
    assert value(read, "bpfleakd_process_unmatched_frees_total", **labels) == 13
    assert value(read, "bpfleakd_process_probe_hits_total", **labels) == 40_009
    assert value(read, "bpfleakd_process_tracing_cores", **labels) == pytest.approx(0.0041)
    assert value(read, "bpfleakd_process_losses_total", reason="live_full", **labels) == 29
    assert value(read, "bpfleakd_process_losses_total", reason="stack_full", **labels) == 0


def test_every_figure_of_a_call_site_is_there():
    """With the labels that a dashboard needs to name it."""
    read = samples(a_snapshot(sites=(a_site(growth_bytes_per_s=-17.0),)))
    labels = {
        "pid": "4711",
        "comm": "leaky",
        "site": "5d41402abc4b2a76",
        "kind": "heap",
        "function": "leak_here",
        "module": "/usr/bin/leaky",
    }
    assert value(read, "bpfleakd_site_live_bytes", **labels) == 2_000_003
    assert value(read, "bpfleakd_site_live_allocations", **labels) == 4_201
    assert value(read, "bpfleakd_site_growth_bytes_per_second", **labels) == -17
    assert value(read, "bpfleakd_site_allocated_bytes_total", **labels) == 3_000_017
    assert value(read, "bpfleakd_site_allocations_total", **labels) == 6_301
    assert value(read, "bpfleakd_site_leak_bytes_per_second", **labels, verdict="leak") == 6_007.5


def test_the_daemon_tells_of_itself():
    """Version, ticks, processes, and what it takes of the machine."""
    made = exporter(a_snapshot())
    made.observe_tick(0.02)
    made.observe_tick(0.07)
    text = made.expose()[0].decode()
    read = {s.name: s for family in parse_text(text) for s in family.samples if "le" not in s.labels}
    assert read["bpfleakd_build_info"].labels == {"version": "0.1.0", "attach_method": "session"}
    assert read["bpfleakd_build_info"].value == 1
    assert read["bpfleakd_uptime_seconds"].value == 307
    assert read["bpfleakd_ticks_total"].value == 311
    assert read["bpfleakd_processes_traced"].value == 1
    assert read["bpfleakd_processes_attached_total"].value == 19
    assert read["bpfleakd_processes_ended_total"].value == 3
    assert read["bpfleakd_tick_duration_seconds_count"].value == 2
    assert read["bpfleakd_tick_duration_seconds_sum"].value == pytest.approx(0.09)
    assert 'bpfleakd_tick_duration_seconds_bucket{le="0.05"} 1.0' in text
    assert read["process_resident_memory_bytes"].value > 1_000_000


def test_the_watch_is_told_in_figures():
    """And the fastest growers, with names that they have chosen."""
    snapshot = replace(a_snapshot(), watch=WatchSummary(907, 5, 2, 13, (a_watched_process(comm=HOSTILE),)))
    read = samples(snapshot)
    assert value(read, "bpfleakd_watched_processes") == 907
    assert value(read, "bpfleakd_growing_processes") == 5
    assert value(read, "bpfleakd_windows_open") == 2
    assert value(read, "bpfleakd_windows_opened_total") == 13
    (rate,) = named(read, "bpfleakd_growing_process_bytes_per_second")
    assert read[rate] == 3_001


def test_what_tracing_costs_is_told():
    """In cores and seconds, as Prometheus wants it."""
    guard = GuardStats(540.0, 1_100.0, 12.5, 3, 5, 7)
    read = samples(replace(a_snapshot(), guard=guard))
    assert value(read, "bpfleakd_tracing_cores") == 0.125
    assert value(read, "bpfleakd_probe_cost_seconds", of="hit") == pytest.approx(540e-9)
    assert value(read, "bpfleakd_probe_cost_seconds", of="record") == pytest.approx(1.1e-6)
    assert value(read, "bpfleakd_processes_recorded_sparsely_total") == 3
    assert value(read, "bpfleakd_processes_given_up_total") == 5
    assert value(read, "bpfleakd_caches_shed_total") == 7


def test_a_process_that_was_detached_shows_as_such():
    """Its figures stay, and do not count as traced."""
    read = samples(a_snapshot(a_traced_process(process=a_process(state=ProcessState.DETACHED))))
    assert value(read, "bpfleakd_process_traced", pid="4711", comm="leaky") == 0
    assert value(read, "bpfleakd_processes_traced") == 0


def test_a_label_set_occurs_once():
    """Prometheus refuses a scrape for one that comes twice: a pid used again, one fingerprint twice."""
    ended = a_traced_process(process=a_process(comm="before", state=ProcessState.EXITED))
    snapshot = a_snapshot(
        ended, a_traced_process(), ended, sites=(a_site(live_bytes=23), a_site(live_bytes=101))
    )
    read = samples(snapshot)
    assert value(read, "bpfleakd_process_live_bytes", pid="4711", comm="leaky") == 5_000_011
    assert len(named(read, "bpfleakd_process_live_bytes")) == 1
    assert [read[key] for key in named(read, "bpfleakd_site_live_bytes")] == [124]


@given(
    processes=st.integers(0, 5),
    sites=st.integers(0, 30),
    fingerprints=st.integers(1, 30),
    top_sites=st.integers(0, 12),
    text=st.text(max_size=300),
)
def test_the_number_of_series_is_bounded(processes, sites, fingerprints, top_sites, text):
    """top_sites call sites a process at most, whatever the snapshot holds, and whatever the names are."""
    traced = [a_traced_process(process=a_process(pid, comm=text)) for pid in range(1, processes + 1)]
    shown = tuple(a_site(text or None, site=f"s{n % fingerprints}", module=text) for n in range(sites))
    snapshot = MetricsSnapshot(
        some_stats(), tuple(traced), {process.process.pid: shown for process in traced}
    )
    read = samples(snapshot, top_sites)
    expected = processes * min(top_sites, sites, fingerprints)
    assert len(named(read, "bpfleakd_site_")) == 6 * expected
    assert len(named(read, "bpfleakd_process_")) == processes * (12 + 3)


def test_top_sites_can_be_set_anew():
    """A reload of the configuration may change it."""
    made = exporter(a_snapshot(sites=(a_site(),)))
    made.top_sites = 0
    assert b"leak_here" not in made.expose()[0]


def test_label_values_are_printable_and_bounded():
    """Names come from traced programs; a C++ symbol may have kilobytes, and a path matters at its end."""
    long_name, long_path = "f" * 5_000, f"/{'d' * 5_000}/libleak.so"
    sites = (a_site(HOSTILE, site="a"), a_site(long_name, site="b", module=long_path))
    read = samples(a_snapshot(a_traced_process(process=a_process(comm=HOSTILE)), sites=sites))
    labels = [dict(key[1]) for key in named(read, "bpfleakd_site_live_bytes")]
    for text in (text for each in labels for text in each.values()):
        assert text.isprintable()
        assert len(text) <= 128
    assert labels[1]["module"].endswith("d/libleak.so")


def test_unknown_names_have_a_label_all_the_same():
    """An empty label would be no label to Prometheus."""
    read = samples(a_snapshot(sites=(a_site(None, module=None),)))
    (key,) = named(read, "bpfleakd_site_live_bytes")
    assert (dict(key[1])["function"], dict(key[1])["module"]) == ("unknown", "unknown")


def test_openmetrics_is_spoken_where_it_is_asked_for():
    """As Prometheus does by default."""
    made = exporter(a_snapshot(sites=(a_site(),)))
    body, content_type = made.expose("application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    families = {family.name for family in parse_openmetrics(body.decode())}
    assert {"bpfleakd_process_allocated_bytes", "bpfleakd_site_live_bytes", "bpfleakd_build"} <= families


@pytest.mark.parametrize(
    "accept", ["", "*/*", "text/html", "application/openmetrics-text;version=x.y", "\xff;;="]
)
def test_any_other_accept_header_gets_plain_text(accept):
    """A broken header is no reason to fail a scrape."""
    body, content_type = exporter(a_snapshot()).expose(accept)
    assert content_type.startswith("text/plain; version=0.0.4")
    assert list(parse_text(body.decode()))


def test_two_exporters_live_in_one_process():
    """Nothing is registered in prometheus_client's global registry."""
    assert exporter(a_snapshot()).expose()[0]
    assert exporter(a_snapshot()).expose()[0]


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not there: apt install prometheus")
def test_promtool_has_nothing_to_say():
    """Names, units, types and help texts are as Prometheus wants them."""
    made = exporter(a_snapshot(a_traced_process(losses={"live_full": 3}), sites=(a_site(),)))
    made.observe_tick(0.01)
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=made.expose()[0], capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
