"""Data that a runtime delivers on request only, because that disturbs the process."""

from __future__ import annotations

from msgspec import Struct


class UnnamedFrames(Struct, frozen=True):
    """How many frames of a file have no name; `module` is None for memory outside of files."""

    module: str | None
    frames: int


class RequestedNames(Struct, frozen=True):
    """The result of requesting names from a runtime by `command`: how many frames had none before."""

    runtime: str
    command: str
    took_s: float
    newly_named: int


class NamesReport(Struct, frozen=True):
    """How many different frames the call sites of a process have, and which have no name.

    `runtimes` are names and versions; `notes` sentences on what is missing.
    """

    pid: int
    comm: str
    runtimes: tuple[str, ...]
    frames: int
    unnamed: tuple[UnnamedFrames, ...]
    notes: tuple[str, ...]
    requested: RequestedNames | None = None


class HeapSamplePrice(Struct, frozen=True):
    """The cost of sampling a heap through the inspector at `address`.

    Unless `is_open`, bpfleakd opens it for that time, and users of the machine can run code in the process. A
    collection stops the process for about `stops_s`; None if the size of the heap is unknown.
    """

    pid: int
    comm: str
    runtime: str
    address: str
    is_open: bool
    stops_s: float | None


class SampledFunction(Struct, frozen=True):
    """Objects that a function allocated and a collection left alive, estimated from `samples`.

    `location` is "file:line" of the function, None if it has no file.
    """

    function: str
    location: str | None
    live_bytes: int
    samples: int


class HeapSample(Struct, frozen=True):
    """The functions that allocated live objects within `sampled_s`, most bytes first.

    `live_bytes` is the sum over all functions. `is_others`: the program itself samples, and these are its
    samples, of an unknown time. `is_left_open`: the inspector at `address` could not be closed again.
    """

    pid: int
    comm: str
    runtime: str
    address: str
    sampled_s: float
    live_bytes: int
    functions: tuple[SampledFunction, ...]
    was_open: bool
    is_others: bool
    is_left_open: bool
