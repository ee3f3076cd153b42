"""Data that a process' language runtime delivers on request only, since it costs the process something.

Names of compiled code, objects by type, and two samples: of the heap by function (Node.js), and of the
allocators of surviving objects (Java). Requests take long and may stop the process, so they are made in other
threads than tracing: first the tracing thread looks up the runtime, then another one waits for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from urllib.parse import unquote, urlsplit

from msgspec.structs import replace

from bpfleakd import errors
from bpfleakd.analysis.managed_code import is_own_method
from bpfleakd.model.code.stack import Frame, FrameKind
from bpfleakd.model.report import LeakReport
from bpfleakd.model.runtimes.managed import TypesPrice, TypesReport
from bpfleakd.model.runtimes.requested import (
    HeapSample,
    HeapSamplePrice,
    NamesReport,
    RequestedNames,
    SampledFunction,
    UnnamedFrames,
)
from bpfleakd.model.runtimes.survivors import Survivor, SurvivorLine, SurvivorsPrice, SurvivorsReport
from bpfleakd.printable import printable
from bpfleakd.runtimes.runtime import (
    HeapSampler,
    PerfMapRuntime,
    PerfMapWriter,
    RunningTypeSource,
    Runtime,
    RuntimeFailure,
    SampledLine,
    SampledRuntime,
    SampledSurvivor,
    SurvivorSampler,
    SurvivorsRuntime,
    TypeCount,
    TypeSource,
)
from bpfleakd.tracing.traced_process import TracedProcess
from bpfleakd.tracing.types.type_counts import TypeCounts


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


def survivor_sampler_of(traced: TracedProcess) -> tuple[str, SurvivorSampler]:
    """The name of the runtime that can sample survivors, and its sampler.

    Raises TargetRefused without one.
    """
    for runtime in traced.runtimes:
        if isinstance(runtime, SurvivorsRuntime) and runtime.survivors is not None:
            return runtime.name, runtime.survivors
    raise errors.TargetRefused(
        f"process {traced.pid} has no language runtime that can sample the allocators of surviving objects",
        "only Java (JDK 17 and later) is supported; for Node.js use --inspector",
    )


def survivors_price(pid: int, comm: str, runtime: str, sampler: SurvivorSampler) -> SurvivorsPrice:
    """The cost of samples."""
    return SurvivorsPrice(pid, comm, runtime, sampler.stops_s())


def sampled_survivors(
    pid: int, comm: str, runtime: str, sampler: SurvivorSampler, seconds: float
) -> SurvivorsReport:
    """Sample, outside the tracing thread. Raises TargetRefused."""
    try:
        found = sampler.sample(seconds)
    except RuntimeFailure as error:
        raise errors.TargetRefused(f"process {pid} cannot be sampled: {error}") from error
    rows = tuple(_survivor(one, found.samples) for one in found.survivors)
    return SurvivorsReport(pid, comm, runtime, round(found.sampled_s, 3), found.samples, rows)


def _survivor(one: SampledSurvivor, samples: int) -> Survivor:
    blamed = _blamed(one.stack)
    return Survivor(
        printable(one.type),
        one.samples,
        round(one.samples / max(samples, 1), 4),
        printable(blamed.method) if blamed else None,
        (blamed.line or None) if blamed else None,
        tuple(printable(step) for step in one.held_by),
        tuple(SurvivorLine(printable(line.method), line.line or None) for line in one.stack),
    )


def _blamed(stack: Sequence[SampledLine]) -> SampledLine | None:
    """The innermost method of the program, or else of its class library."""
    own = (line for line in stack if is_own_method(Frame(line.method, None, None, None, 0, FrameKind.JIT)))
    return next(own, stack[0] if stack else None)


def types_price(traced: TracedProcess) -> TypesPrice:
    """The cost of a count. Raises TargetRefused without a runtime that can count."""
    runtime, source = _type_runtime(traced)
    return TypesPrice(traced.pid, traced.attachment.process.comm, runtime.name, source.price_s(), source.work)


def source_of(traced: TracedProcess) -> TypeSource:
    """The runtime's counter of objects. Raises TargetRefused without a runtime that can count."""
    return _type_runtime(traced)[1]


def read_types(source: TypeSource, *, stop: bool = True) -> Sequence[TypeCount]:
    """Count, outside the tracing thread. Raises TargetRefused if the runtime does not answer."""
    if not stop and not isinstance(source, RunningTypeSource):
        raise errors.TargetRefused(
            "the objects of this runtime cannot be counted while the process runs", "omit --no-stop"
        )
    try:
        return source.read_running() if isinstance(source, RunningTypeSource) and not stop else source.read()
    except RuntimeFailure as error:
        raise errors.TargetRefused(f"the objects cannot be counted: {error}") from error


def noted_types(
    traced: TracedProcess, counts: Sequence[TypeCount], took_s: float, now_ns: int
) -> TypesReport:
    """The report on a count, which is stored for comparison with the next one."""
    last = traced.runtimes.counts
    before = replace(last, before=None) if last is not None else None
    noted = traced.runtimes.counts = TypeCounts(now_ns, counts, before)
    runtime, source = _type_runtime(traced)
    comm = traced.attachment.process.comm
    return TypesReport(
        traced.pid, comm, runtime.name, round(took_s, 3), noted.since_s, noted.rows, source.includes_garbage
    )


def _type_runtime(traced: TracedProcess) -> tuple[Runtime, TypeSource]:
    runtime = traced.runtimes.type_runtime
    if runtime is None or runtime.types is None:
        raise errors.TargetRefused(
            f"process {traced.pid} has no language runtime that can count its objects by type",
            "only .NET, Java and Python are supported; for Node.js use --inspector",
        )
    return runtime, runtime.types
