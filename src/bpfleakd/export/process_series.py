"""The exported series of processes and call sites: bounded, summed by labels, with counters that never fall.

`metrics.max_series` is divided in advance, so no snapshot can exceed it: two fifths for figures of processes,
a tenth for their descriptions (bpfleakd_process_info), half for call sites.

Further processes are summed under the name `OTHERS`, so sums cover all processes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from msgspec import Struct

from bpfleakd.analysis.merging import merged_sites
from bpfleakd.export.figures import label_text, label_value
from bpfleakd.export.process_figures import (
    BILL_GAUGES,
    PROCESS_COUNTERS,
    PROCESS_GAUGES,
    ExportedProcess,
)
from bpfleakd.export.series_choice import Candidate, SeriesChoice
from bpfleakd.export.series_sums import SeriesReading, SeriesSums, Sums
from bpfleakd.export.site_figures import SITE_COUNTERS, SITE_GAUGES
from bpfleakd.model.code.stack import Frame
from bpfleakd.model.metrics import MetricLabel, MetricsSnapshot
from bpfleakd.model.process import ProcessRow, ProcessState
from bpfleakd.model.report import SiteReport
from bpfleakd.model.site import AllocationKind
from bpfleakd.model.verdict import VERDICTS, Verdict

OTHERS = "(others)"

_STACK_CHARS = 512
_UNKNOWN = "unknown"

_GAUGES = (*PROCESS_GAUGES, *BILL_GAUGES)
_SERIES_OF_PROCESS = len(_GAUGES) + len(PROCESS_COUNTERS)
_SERIES_OF_SITE = len(SITE_GAUGES) + len(SITE_COUNTERS) + 2  # bpfleakd_site_verdict, bpfleakd_site_info

# A leak that is still small is ranked by its size tomorrow.
_AHEAD_S = 86_400

_Labels = tuple[str, ...]
_SiteKey = tuple[_Labels, str]


class SeriesOptions(Struct, frozen=True):
    """The configuration of the metrics of processes and call sites."""

    labels: tuple[MetricLabel, ...] = (MetricLabel.COMM, MetricLabel.PID)
    top_sites: int = 10
    max_series: int = 10_000
    linger_s: float = 300.0


class SiteText(Struct, frozen=True):
    """The description of a call site. `stack` begins with the thread's first function.

    `called_by` is "function file:line" of the program's own function that called a library's; or "".
    """

    kind: AllocationKind
    function: str
    module: str
    location: str
    called_by: str
    stack: str


class ShownSite(Struct, frozen=True):
    """A call site of the processes with these labels; `site` is the fingerprint.

    `verdict` is the worst of theirs; None without a current one.
    """

    labels: _Labels
    site: str
    text: SiteText
    sums: Sums
    verdict: Verdict | None
    confidence: float


class ShownSeries(Struct, frozen=True):
    """All exported data on processes and call sites, and how many did not fit."""

    processes: dict[_Labels, Sums]
    infos: tuple[ProcessRow, ...]
    sites: tuple[ShownSite, ...]
    losses: dict[str, float]
    processes_left_out: int = 0
    sites_left_out: int = 0


class ProcessSeries:
    """Processes a snapshot at each tick; times are seconds of any monotonic clock."""

    def __init__(self, options: SeriesOptions) -> None:
        self._labels = options.labels
        processes, sites = options.max_series * 4 // 10, options.max_series // 2
        # One place is reserved for the others.
        self._process_choice: SeriesChoice[_Labels] = SeriesChoice(
            per_owner=options.max_series,
            total=max(0, processes // _SERIES_OF_PROCESS - 1),
            linger_s=options.linger_s,
        )
        self._info_choice: SeriesChoice[int] = SeriesChoice(
            per_owner=options.max_series, total=options.max_series // 10, linger_s=0
        )
        self._site_choice: SeriesChoice[_SiteKey] = SeriesChoice(
            per_owner=options.top_sites, total=sites // _SERIES_OF_SITE, linger_s=options.linger_s
        )
        combine = [gauge.combine for gauge in _GAUGES]
        self._process_sums: SeriesSums[_Labels] = SeriesSums(combine, len(PROCESS_COUNTERS))
        self._site_sums: SeriesSums[_SiteKey] = SeriesSums(
            [gauge.combine for gauge in SITE_GAUGES], len(SITE_COUNTERS)
        )
        self._loss_sums: SeriesSums[str] = SeriesSums([], 1)
        self._texts: dict[str, SiteText] = {}

    def update(self, snapshot: MetricsSnapshot, now_s: float) -> ShownSeries:
        """The data to export until the next tick."""
        rows = [
            ExportedProcess(
                row,
                snapshot.usage.get(row.process.pid),
                snapshot.verdicts.get(row.process.pid),
                snapshot.managed.get(row.process.pid),
                snapshot.goroutines.get(row.process.pid),
                snapshot.bills.get(row.process.pid, ()),
            )
            for row in _one_per_pid(snapshot.processes)
        ]
        pids = {row.traced.process.pid for row in rows}
        labels = {row.traced.process.pid: self._labels_of(row.traced) for row in rows}
        processes, others = self._processes(rows, labels, now_s)
        sites, sites_left_out = self._sites(snapshot, rows, labels, now_s)
        by_size = {row.traced.process.pid: Candidate(None, row.traced.process.live_bytes) for row in rows}
        infos = set(self._info_choice.update(by_size, now_s))
        losses: dict[str, dict[int, SeriesReading]] = defaultdict(dict)
        for row in rows:
            for reason, count in row.traced.losses.items():
                losses[reason][row.traced.process.pid] = _reading(row.traced, (), (count,))
        reasons = self._loss_sums.groups | losses.keys()
        return ShownSeries(
            processes=processes,
            infos=tuple(row.traced for row in rows if row.traced.process.pid in infos),
            sites=sites,
            losses={
                reason: sums.counters[0]
                for reason, sums in self._loss_sums.update(reasons, losses, pids).items()
            },
            processes_left_out=others,
            sites_left_out=sites_left_out,
        )

    def _labels_of(self, row: ProcessRow) -> _Labels:
        return tuple(label_value(label, row.process) for label in self._labels)

    def _processes(
        self, rows: list[ExportedProcess], labels: dict[int, _Labels], now_s: float
    ) -> tuple[dict[_Labels, Sums], int]:
        weights: dict[_Labels, float] = defaultdict(float)
        for row in rows:
            weights[labels[row.traced.process.pid]] += row.traced.process.live_bytes
        chosen = self._process_choice.update(
            {key: Candidate(None, weight) for key, weight in weights.items()}, now_s
        )
        shown = set(chosen)
        rest = (OTHERS,) * len(self._labels)
        readings: dict[_Labels, dict[int, SeriesReading]] = defaultdict(dict)
        others = 0
        for row in rows:
            pid = row.traced.process.pid
            own = labels[pid] in shown
            others += not own
            readings[labels[pid] if own else rest][pid] = _reading(
                row.traced,
                tuple(gauge.value(row) for gauge in _GAUGES),
                tuple(counter.value(row) for counter in PROCESS_COUNTERS),
            )
        if others or rest in self._process_sums.groups:
            chosen.append(rest)
        return self._process_sums.update(chosen, readings, labels.keys(), exclusive=True), others

    def _sites(
        self, snapshot: MetricsSnapshot, rows: list[ExportedProcess], labels: dict[int, _Labels], now_s: float
    ) -> tuple[tuple[ShownSite, ...], int]:
        found: dict[_SiteKey, list[tuple[ProcessRow, SiteReport]]] = defaultdict(list)
        for row in rows:
            pid = row.traced.process.pid
            for site in merged_sites(snapshot.top_sites.get(pid, ())):
                found[labels[pid], site.site].append((row.traced, site))
        chosen = self._site_choice.update(
            {
                key: Candidate(key[0], sum(_weight(site) for _row, site in sites))
                for key, sites in found.items()
            },
            now_s,
        )
        readings = {key: _site_readings(found[key]) for key in chosen if key in found}
        sums = self._site_sums.update(chosen, readings, labels.keys())
        self._remember_texts(chosen, {key[1]: found[key][0][1] for key in readings})
        shown = (
            ShownSite(*key, self._texts[key[1]], sums[key], *_verdict(found.get(key, ()))) for key in chosen
        )
        return tuple(shown), len(found) - len(readings)

    def _remember_texts(self, chosen: Iterable[_SiteKey], reports: dict[str, SiteReport]) -> None:
        """A fingerprint keeps one text, so labels are stable: the first, until the function has a name."""
        for site, report in reports.items():
            known = self._texts.get(site)
            if known is None or known.function == _UNKNOWN:
                self._texts[site] = _site_text(report)
        self._texts = {site: self._texts[site] for _labels, site in chosen}


def _site_text(site: SiteReport) -> SiteText:
    names = [
        frame.function or frame.module or _UNKNOWN for frame in reversed(site.stack) if not frame.inlined
    ]
    return SiteText(
        site.kind,
        label_text(site.function or _UNKNOWN),
        label_text(site.module or _UNKNOWN, keep_end=True),
        label_text(site.location or "", keep_end=True),
        label_text(_caller(site.called_by), keep_end=True),
        label_text(";".join(names), _STACK_CHARS, keep_end=True),
    )


def _caller(frame: Frame | None) -> str:
    if frame is None:
        return ""
    return " ".join(part for part in (frame.function or frame.module, frame.location) if part)


def _weight(site: SiteReport) -> float:
    return site.live_bytes + site.leak_bytes_per_s * _AHEAD_S


def _verdict(found: Iterable[tuple[ProcessRow, SiteReport]]) -> tuple[Verdict | None, float]:
    verdicts = [(VERDICTS.index(site.verdict), -site.confidence) for _row, site in found]
    if not verdicts:
        return None, 0.0
    worst, negative = min(verdicts)
    return VERDICTS[worst], -negative


def _site_readings(found: Iterable[tuple[ProcessRow, SiteReport]]) -> dict[int, SeriesReading]:
    return {
        row.process.pid: _reading(
            row,
            tuple(gauge.value(site) for gauge in SITE_GAUGES),
            tuple(counter.value(site) for counter in SITE_COUNTERS),
        )
        for row, site in found
    }


def _reading(row: ProcessRow, gauges: tuple[float | None, ...], counters: tuple[float, ...]) -> SeriesReading:
    return SeriesReading(gauges, counters, row.process.attached_s, row.adopted_count > 0)


def _one_per_pid(processes: Iterable[ProcessRow]) -> list[ProcessRow]:
    """Of several processes with the same pid, keep the live one, else the last."""
    by_pid: dict[int, ProcessRow] = {}
    for process in processes:
        known = by_pid.get(process.process.pid)
        if known is None or known.process.state != ProcessState.TRACED:
            by_pid[process.process.pid] = process
    return list(by_pid.values())
