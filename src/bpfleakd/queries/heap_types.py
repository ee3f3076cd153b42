"""Counts of a managed heap's objects by type, made in a thread because counting stops the process."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from bpfleakd import errors
from bpfleakd.model.runtimes.managed import TypesPrice, TypesReport
from bpfleakd.runtimes.runtime import RunningTypeSource, Runtime, RuntimeFailure, TypeCount, TypeSource
from bpfleakd.tracing.traced_process import TracedProcess
from bpfleakd.tracing.types.type_counts import TypeCounts


def types_price(traced: TracedProcess) -> TypesPrice:
    """The cost of a count. Raises TargetRefused without a runtime that can count."""
    runtime, source = _found(traced)
    return TypesPrice(traced.pid, traced.attachment.process.comm, runtime.name, source.price_s(), source.work)


def source_of(traced: TracedProcess) -> TypeSource:
    """The runtime's counter of objects. Raises TargetRefused without a runtime that can count."""
    return _found(traced)[1]


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
    runtime, source = _found(traced)
    comm = traced.attachment.process.comm
    return TypesReport(
        traced.pid, comm, runtime.name, round(took_s, 3), noted.since_s, noted.rows, source.includes_garbage
    )


def _found(traced: TracedProcess) -> tuple[Runtime, TypeSource]:
    runtime = traced.runtimes.type_runtime
    if runtime is None or runtime.types is None:
        raise errors.TargetRefused(
            f"process {traced.pid} has no language runtime that can count its objects by type",
            "only .NET, Java and Python are supported; for Node.js use --inspector",
        )
    return runtime, runtime.types
