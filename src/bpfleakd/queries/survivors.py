"""Samples the allocators of retained objects in a managed heap, in a thread because that waits."""

from __future__ import annotations

from collections.abc import Sequence

from bpfleakd import errors
from bpfleakd.analysis.managed_code import is_own_method
from bpfleakd.model.code.stack import Frame, FrameKind
from bpfleakd.model.runtimes.survivors import Survivor, SurvivorLine, SurvivorsPrice, SurvivorsReport
from bpfleakd.printable import printable
from bpfleakd.runtimes.runtime import (
    RuntimeFailure,
    SampledLine,
    SampledSurvivor,
    SurvivorSampler,
    SurvivorsRuntime,
)
from bpfleakd.tracing.traced_process import TracedProcess


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
