"""The probes of a sampler that a process gets: one place of each kind, or those that all processes share."""

from __future__ import annotations

import os
import sys

import pytest

from bpfleakd.model.code.probe import FunctionRole, ProbedFunction
from bpfleakd.process.files.mapped_files import OpenedFile
from bpfleakd.tracing.attaching.probed_file import ProbedFile, SamplerProbe

ALLOC, FREE = FunctionRole.SAMPLED_ALLOC, FunctionRole.SAMPLED_FREE
SHARED = [("otel_memory", ALLOC, 10), ("otel_memory", FREE, 20)]
PLACES = [("bpfleak", ALLOC, 100 + place) for place in range(4)]
PLACES += [("bpfleak", FREE, 200 + place) for place in range(4)]


def sampler(*probes: tuple[str, FunctionRole, int]) -> ProbedFile:
    names = {ALLOC: "alloc", FREE: "free"}
    sampled = tuple(
        SamplerProbe(ProbedFunction(provider, f"{provider}:{names[role]}", role, "/lib", offset, True), "", 2)
        for provider, role, offset in probes
    )
    file = OpenedFile(os.open(sys.executable, os.O_RDONLY), "")
    return ProbedFile(file, (), (), sampled=sampled)


def offsets(file: ProbedFile) -> set[int]:
    return {probe.shown.offset for probe in file.sampled}


def test_processes_get_different_places() -> None:
    """One of each kind, with the same number; there are as many sets as places."""
    file = sampler(*SHARED, *PLACES)

    chosen = [offsets(file.at_place(number)) for number in range(5)]

    assert chosen == [{100, 200}, {101, 201}, {102, 202}, {103, 203}, {100, 200}]
    assert all(file.at_place(number).has_sampler for number in range(5))


def test_processes_that_share_probes_get_the_same() -> None:
    """Those of the convention."""
    assert offsets(sampler(*SHARED, *PLACES).at_place(None)) == {10, 20}


@pytest.mark.parametrize("places", [[], PLACES[:4], PLACES[4:]], ids=["none", "blocks only", "ends only"])
def test_without_places_all_of_the_others_are_needed(places: list[tuple[str, FunctionRole, int]]) -> None:
    """Any file may claim to have places: without both kinds they are of no use."""
    several = [*SHARED, ("otel_memory", ALLOC, 11)]
    assert offsets(sampler(*several, *places).at_place(3)) == {10, 11, 20}


@pytest.mark.parametrize("shared", [[], SHARED[:1]])
def test_places_do_without_the_others(shared: list[tuple[str, FunctionRole, int]]) -> None:
    """Blocks whose ends nobody announces would live forever."""
    file = sampler(*shared, *PLACES)
    assert offsets(file.at_place(1)) == {101, 201}
    assert offsets(file.at_place(None)) == {100, 200}
    assert not sampler(*SHARED[:1], *PLACES[4:]).has_sampler
