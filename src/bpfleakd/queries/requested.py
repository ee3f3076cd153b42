"""Data that a process' runtime delivers on request only: names, and a sample of its heap."""

from __future__ import annotations

from collections import Counter
from urllib.parse import unquote, urlsplit

from msgspec.structs import replace

from bpfleakd import errors
from bpfleakd.model.report import LeakReport
from bpfleakd.model.runtimes.requested import (
    HeapSample,
    HeapSamplePrice,
    NamesReport,
    RequestedNames,
    SampledFunction,
    UnnamedFrames,
)
from bpfleakd.printable import printable
from bpfleakd.runtimes.runtime import (
    HeapSampler,
    PerfMapRuntime,
    PerfMapWriter,
    RuntimeFailure,
    SampledRuntime,
)
from bpfleakd.tracing.traced_process import TracedProcess


def names_report(traced: TracedProcess, report: LeakReport) -> NamesReport:
    """Which frames of a report have names."""
    named: dict[tuple[int, bool], str | None] = {}
    modules: dict[tuple[int, bool], str | None] = {}
    for site in report.sites:
        for frame in site.stack:
            key = frame.address, frame.inlined
            named[key] = named.get(key) or frame.function
            modules[key] = frame.module
    unnamed = Counter(modules[key] for key, name in named.items() if name is None)
    return NamesReport(
        traced.pid,
        traced.attachment.process.comm,
        tuple(f"{runtime.name} {runtime.version}" for runtime in traced.runtimes),
        len(named),
        tuple(UnnamedFrames(module, count) for module, count in unnamed.most_common()),
        traced.runtimes.notes,
    )


def with_new_names(
    before: NamesReport, after: NamesReport, runtime: str, command: str, took_s: float
) -> NamesReport:
    """The report after a request, with the names that the request has added."""
    newly = sum(one.frames for one in before.unnamed) - sum(one.frames for one in after.unnamed)
    return replace(after, requested=RequestedNames(runtime, command, round(took_s, 3), max(0, newly)))


def perf_map_of(traced: TracedProcess) -> tuple[str, PerfMapWriter]:
    """The name of the runtime that can write names, and its writer. Raises TargetRefused without one."""
    for runtime in traced.runtimes:
        if isinstance(runtime, PerfMapRuntime):
            return runtime.name, runtime.perf_map
    raise errors.TargetRefused(
        f"process {traced.pid} has no language runtime that can write names", "only Java is supported"
    )


def heap_sample_price(pid: int, comm: str, runtime: str, sampler: HeapSampler) -> HeapSamplePrice:
    """The cost of a sample, outside the tracing thread. Raises TargetRefused if it cannot be taken."""
    try:
        address, is_open = sampler.address()
    except RuntimeFailure as error:
        raise errors.TargetRefused(f"the inspector of process {pid} is not used: {error}") from error
    return HeapSamplePrice(pid, comm, runtime, address, is_open, sampler.stops_s())


def sampler_of(traced: TracedProcess) -> tuple[str, HeapSampler]:
    """The name of the runtime whose heap can be sampled, and its sampler.

    Raises TargetRefused without one.
    """
    for runtime in traced.runtimes:
        if isinstance(runtime, SampledRuntime):
            return runtime.name, runtime.sampler
    raise errors.TargetRefused(
        f"process {traced.pid} has no language runtime with an inspector", "only Node.js is supported"
    )


def heap_sample(pid: int, comm: str, runtime: str, sampler: HeapSampler, seconds: float) -> HeapSample:
    """Sample, outside the tracing thread. Raises TargetRefused."""
    try:
        found = sampler.sample(seconds)
    except RuntimeFailure as error:
        raise errors.TargetRefused(f"the inspector of process {pid} is not used: {error}") from error
    functions = tuple(
        SampledFunction(
            printable(one.name) or "(anonymous)", _location(one.url, one.line), one.live_bytes, one.samples
        )
        for one in found.functions
    )
    return HeapSample(
        pid,
        comm,
        runtime,
        found.address,
        round(found.sampled_s, 3),
        found.live_bytes,
        functions,
        found.was_open,
        found.is_others,
        found.is_left_open,
    )


def _location(url: str, line: int) -> str | None:
    """The file of a script and a line, in the form that frames use."""
    if not url:
        return None
    path = unquote(urlsplit(url).path) if url.startswith("file:") else url
    name = printable(path if path.startswith("node:") else path.rsplit("/", 1)[-1])
    return f"{name}:{line}" if line else name
