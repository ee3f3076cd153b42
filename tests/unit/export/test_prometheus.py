"""The metrics, read back by a parser."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from bpfleakd.export.process_series import OTHERS, SeriesOptions
from bpfleakd.export.prometheus import PrometheusExporter
from bpfleakd.model.address_space import BillKind, BillLine
from bpfleakd.model.daemon import GuardStats
from bpfleakd.model.metrics import MetricLabel, MetricsSnapshot, ProcessUsage
from bpfleakd.model.process import ProcessLabels, ProcessState
from bpfleakd.model.verdict import Verdict
from bpfleakd.model.watching import WatchSummary

from ..samples import (
    HOSTILE,
    a_frame,
    a_process,
    a_process_verdict,
    a_site,
    a_snapshot,
    a_traced_process,
    a_watched_process,
)
from .exposition import LIMITS

PID_AND_COMM = (MetricLabel.PID, MetricLabel.COMM)


def exporter(snapshot: MetricsSnapshot, **options) -> PrometheusExporter:
    made = PrometheusExporter(snapshot, SeriesOptions(**{"labels": PID_AND_COMM, **options}), limits=LIMITS)
    made.update(snapshot, 0.0, 0.01)
    return made


def read_back(made: PrometheusExporter) -> dict[tuple, float]:
    """Return {(name, labels): value}; fail for a label set that occurs twice, as Prometheus does."""
    body, _ = made.expose()
    read = [sample for family in parse_text(body.decode()) for sample in family.samples]
    keys = [(sample.name, frozenset(sample.labels.items())) for sample in read]
    assert [key for key, count in Counter(keys).items() if count > 1] == []
    return dict(zip(keys, (sample.value for sample in read), strict=True))


def samples(snapshot: MetricsSnapshot, **options) -> dict[tuple, float]:
    return read_back(exporter(snapshot, **options))


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
    assert value(read, "bpfleakd_process_losses_total", **labels) == 29
    assert value(read, "bpfleakd_losses_total", reason="live_full") == 29
    assert value(read, "bpfleakd_losses_total", reason="stack_full") == 0


def test_what_proc_and_the_verdict_say_of_a_process():
    """As far as it is known."""
    usage = {4711: ProcessUsage(9_000_011, 7, 23)}
    verdicts = {4711: a_process_verdict()}
    snapshot = replace(a_snapshot(), usage=usage, verdicts=verdicts, goroutines={4711: 31})
    read = samples(snapshot)
    labels = {"pid": "4711", "comm": "leaky"}
    assert value(read, "bpfleakd_process_goroutines", **labels) == 31
    assert value(read, "bpfleakd_process_anonymous_bytes", **labels) == 9_000_011
    assert value(read, "bpfleakd_process_threads", **labels) == 7
    assert value(read, "bpfleakd_process_leaks", **labels) == 1
    assert value(read, "bpfleakd_process_leak_bytes_per_second", **labels) == 7_001
    assert value(read, "bpfleakd_process_memory_growth_bytes_per_second", **labels) == 7_919
    assert value(read, "bpfleakd_process_explained_ratio", **labels) == pytest.approx(0.884)
    assert value(read, "bpfleakd_process_memory_room_bytes", **labels) == 90_000_037
    assert value(read, "bpfleakd_process_limit_reached_seconds", **labels) == pytest.approx(11_365.0)
    assert named(samples(a_snapshot()), "bpfleakd_process_threads") == []


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
    assert value(read, "bpfleakd_site_leak_bytes_per_second", **labels) == 6_007.5
    assert value(read, "bpfleakd_site_verdict", **labels, verdict="leak") == pytest.approx(0.83)


def test_the_daemon_tells_of_itself():
    """Version, ticks, processes, and its use of the machine."""
    made = exporter(a_snapshot())
    made.update(a_snapshot(), 1.0, 0.07)
    text = made.expose()[0].decode()
    read = {s.name: s for family in parse_text(text) for s in family.samples if "le" not in s.labels}
    assert read["bpfleakd_build_info"].labels == {"version": "0.1.0", "attach_method": "session"}
    assert read["bpfleakd_build_info"].value == 1
    assert read["bpfleakd_uptime_seconds"].value == 307
    assert read["bpfleakd_ticks_total"].value == 311
    assert read["bpfleakd_processes_traced"].value == 1
    assert read["bpfleakd_processes_attached_total"].value == 19
    assert read["bpfleakd_processes_ended_total"].value == 3
    assert read["bpfleakd_oom_kills_total"].value == 2
    assert read["bpfleakd_tick_duration_seconds_count"].value == 2
    assert read["bpfleakd_tick_duration_seconds_sum"].value == pytest.approx(0.08)
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
    """In cores and seconds, as Prometheus recommends."""
    guard = GuardStats(540.0, 1_100.0, 12.5, 3, 5, 7)
    read = samples(replace(a_snapshot(), guard=guard))
    assert value(read, "bpfleakd_tracing_cores") == 0.125
    assert value(read, "bpfleakd_probe_cost_seconds", of="hit") == pytest.approx(540e-9)
    assert value(read, "bpfleakd_probe_cost_seconds", of="record") == pytest.approx(1.1e-6)
    assert value(read, "bpfleakd_processes_recorded_sparsely_total") == 3
    assert value(read, "bpfleakd_processes_evicted_total") == 5
    assert value(read, "bpfleakd_caches_dropped_total") == 7


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
    processes=st.integers(0, 20),
    sites=st.integers(0, 12),
    ticks=st.integers(1, 3),
    max_series=st.integers(100, 600),
    labels=st.lists(st.sampled_from(MetricLabel), unique=True),
    text=st.text(max_size=20),
)
@settings(max_examples=15)
def test_the_number_of_series_is_bounded(processes, sites, ticks, max_series, labels, text):
    """By `max_series`, whatever comes and goes, and whatever the names are."""
    made = exporter(a_snapshot(), max_series=max_series, labels=tuple(labels), top_sites=5)
    for tick in range(ticks):
        read = read_back(made)
        assert len(named(read, "bpfleakd_site_")) + len(named(read, "bpfleakd_process_")) <= max_series
        made.update(many(range(1000 * tick + 1, 1000 * tick + processes + 1), sites, text), tick, 0.01)


def many(pids: range, sites: int, comm: str) -> MetricsSnapshot:
    """This many processes with this many sites each, all with all figures."""
    traced = [a_traced_process(process=a_process(pid, comm=f"{comm}{pid}")) for pid in pids]
    return replace(
        a_snapshot(*traced),
        top_sites={pid: tuple(a_site(comm, site=f"{n:x}") for n in range(sites)) for pid in pids},
        usage=dict.fromkeys(pids, ProcessUsage(9_000_011, 7, 23)),
        verdicts=dict.fromkeys(pids, a_process_verdict()),
        bills=dict.fromkeys(pids, tuple(BillLine(kind, 1_009, None) for kind in BillKind)),
    )


def test_five_hundred_processes_stay_below_the_limit():
    """And the sums over all of them are right all the same."""
    read = samples(many(range(1, 501), 20, "worker"), max_series=10_000)
    series = len(named(read, "bpfleakd_site_")) + len(named(read, "bpfleakd_process_"))
    assert 8_000 < series <= 10_000
    live = named(read, "bpfleakd_process_live_bytes")
    assert sum(read[key] for key in live) == 500 * 5_000_011
    assert value(read, "bpfleakd_metrics_processes_left_out") == 500 - (len(live) - 1)
    assert value(read, "bpfleakd_process_traced", pid=OTHERS, comm=OTHERS) == 500 - (len(live) - 1)
    shown = len(named(read, "bpfleakd_site_live_bytes"))
    assert value(read, "bpfleakd_metrics_sites_left_out") == 500 * 20 - shown


def test_the_bill_of_a_process_has_a_label_for_the_kind():
    """Processes with the same labels are summed; kinds that a process does not have are omitted."""
    bills = {
        23: (BillLine(BillKind.HEAP_LIVE, 3_001, None), BillLine(BillKind.FILE, 101, None)),
        101: (BillLine(BillKind.HEAP_LIVE, 2_003, 7.0),),
    }
    snapshot = replace(a_snapshot(*(a_traced_process(process=a_process(pid)) for pid in bills)), bills=bills)
    read = samples(snapshot, labels=(MetricLabel.COMM,))
    assert {key: read[key] for key in named(read, "bpfleakd_process_bill_bytes")} == {
        ("bpfleakd_process_bill_bytes", frozenset({("comm", "leaky"), ("kind", kind)})): size
        for kind, size in (("heap_live", 5_004), ("file", 101))
    }


def test_processes_with_the_same_labels_are_summed():
    """And their call sites; bpfleakd_process_info says which they are."""
    labels = ProcessLabels(unit="shop.service")
    snapshot = a_snapshot(
        *(a_traced_process(process=a_process(pid, labels=labels)) for pid in (23, 101)), sites=(a_site(),)
    )
    read = samples(snapshot, labels=(MetricLabel.COMM, MetricLabel.UNIT, MetricLabel.POD))
    group = {"comm": "leaky", "unit": "shop.service", "pod": ""}
    assert value(read, "bpfleakd_process_live_bytes", **group) == 2 * 5_000_011
    assert value(read, "bpfleakd_process_allocations_total", **group) == 2 * 15_013
    (site,) = named(read, "bpfleakd_site_live_bytes")
    assert read[site] == 2 * 2_000_003
    infos = [dict(labels) for _name, labels in named(read, "bpfleakd_process_info")]
    assert {(info["pid"], info["unit"]) for info in infos} == {
        ("23", "shop.service"),
        ("101", "shop.service"),
    }


def test_a_fingerprint_leads_to_its_stack():
    """From the thread's first function to the allocator's, once for all processes that have it."""
    deep = tuple(a_frame(f"function_{number}") for number in range(200))
    sites = (a_site(), a_site("function_1", site="a", stack=deep))
    read = samples(a_snapshot(a_traced_process(23), a_traced_process(101), sites=sites))
    infos = {dict(labels)["site"]: dict(labels) for _name, labels in named(read, "bpfleakd_site_info")}
    assert len(infos) == len(named(read, "bpfleakd_site_info")) == 2
    assert infos["5d41402abc4b2a76"] == {
        "site": "5d41402abc4b2a76",
        "kind": "heap",
        "function": "leak_here",
        "module": "/usr/bin/leaky",
        "location": "/src/leaky.c:23",
        "called_by": "",
        "stack": "_start;main;leak_here;malloc",
    }
    assert infos["a"]["stack"].endswith(";function_1;function_0")
    assert len(infos["a"]["stack"]) == 512


def test_a_process_that_has_gone_keeps_its_series_for_a_while():
    """It has no memory any more, but its allocations still count."""
    made = exporter(a_snapshot(sites=(a_site(),)), linger_s=300)
    made.update(replace(a_snapshot(), processes=(), top_sites={}), 1.0, 0.01)
    read = read_back(made)
    labels = {"pid": "4711", "comm": "leaky"}
    assert value(read, "bpfleakd_process_live_bytes", **labels) == 0
    assert value(read, "bpfleakd_process_allocated_bytes_total", **labels) == 7_000_003
    assert [read[key] for key in named(read, "bpfleakd_site_live_bytes")] == [0]
    made.update(replace(a_snapshot(), processes=(), top_sites={}), 301.0, 0.01)
    assert named(read_back(made), "bpfleakd_process_live_bytes") == []
    assert named(read_back(made), "bpfleakd_site_") == []


def test_a_small_leak_is_shown_before_a_large_cache():
    """It is ranked by its size by tomorrow."""
    cache = a_site("cache", site="a", live_bytes=1 << 30, verdict=Verdict.STEADY, leak_bytes_per_s=0.0)
    leak = a_site("leak", site="b", live_bytes=1 << 20, leak_bytes_per_s=20_000.0)
    read = samples(a_snapshot(sites=(cache, leak)), top_sites=1)
    assert [dict(labels)["function"] for _name, labels in named(read, "bpfleakd_site_live_bytes")] == ["leak"]
    (verdict,) = named(read, "bpfleakd_site_verdict")
    assert dict(verdict[1])["verdict"] == "leak"


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


def test_it_is_made_once_for_each_tick():
    """However often somebody asks: it takes time of the loop."""
    made = exporter(a_snapshot())
    accepts = ("", "application/openmetrics-text;version=2.0.\xe9", "application/openmetrics-text;version=9")
    first = [made.expose(accept) for accept in accepts]
    assert all(made.expose(accept)[0] is body for accept, (body, _type) in zip(accepts, first, strict=True))
    assert len({content_type for _body, content_type in first}) == 2
    made.update(a_snapshot(), 1.0, 0.01)
    assert made.expose()[0] is not first[0][0]


@pytest.mark.parametrize("accept", ["", "*/*", "text/html", "text/plain;version=1.0.0", "\xff;;="])
def test_any_other_accept_header_gets_plain_text(accept):
    """A malformed header does not fail a scrape."""
    body, content_type = exporter(a_snapshot()).expose(accept)
    assert content_type.startswith("text/plain; version=0.0.4")
    assert list(parse_text(body.decode()))


def test_two_exporters_live_in_one_process():
    """Nothing is registered in prometheus_client's global registry."""
    assert exporter(a_snapshot()).expose()[0]
    assert exporter(a_snapshot()).expose()[0]


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not there: apt install prometheus")
def test_promtool_has_nothing_to_say():
    """Names, units, types and help texts follow Prometheus' conventions."""
    made = exporter(a_snapshot(a_traced_process(losses={"live_full": 3}), sites=(a_site(),)))
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=made.expose()[0], capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
