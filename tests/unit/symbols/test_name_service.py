"""Names are looked up beside the tracing: by file, within a budget, with isolated failures."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from bpfleakd.sandbox.channel import HelperFailed
from bpfleakd.symbols import name_service
from bpfleakd.symbols.module_cache import Module, ModuleCache
from bpfleakd.symbols.name_service import NameService
from bpfleakd.symbols.naming_jobs import DEMANGLE_JOB, Demangled, NamedAddress, SourceFrame

from ..elf.building import compiled, nm
from ..helping import helpers
from .opening import open_file

SOURCE = "__attribute__((noinline)) int hidden(int n) { return n * 23; }\n"
SOURCE += "int main(int n, char **v) { return hidden(n); }\n"


class FakeHelpers:
    """Answers every address with a name, while `gate` is open; a job takes `cost_s`, and says `said_s`."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.jobs: list[str] = []
        self.codes: list[int] = []
        self.fails: set[str] = set()
        self.now_s = 0.0
        self.cost_s = 0.0
        self.said_s: float | None = None

    def answers(
        self, job: str, arguments: Any, files: Sequence[int], kind: type, *, on_spent: Any, **limits: float
    ) -> Iterator[Any]:
        yield from self._answers(job, arguments, files, kind, **limits)
        if self.said_s is not None:
            on_spent(self.said_s)

    def _answers(
        self, job: str, arguments: Any, _files: Sequence[int], _type: type, **_limits: float
    ) -> Iterator[Any]:
        self.gate.wait(20)
        self.jobs.append(job)
        self.now_s += self.cost_s
        if job == DEMANGLE_JOB:
            for name in arguments:
                if name in self.fails:
                    raise HelperFailed("no answer in time")
                yield Demangled(f"readable {name}")
            return
        places, with_lines = arguments
        self.codes += [code for code, _vaddr in places]
        for code, _vaddr in places:
            frames = (SourceFrame("inner", "a.c:1"),) if with_lines else ()
            yield NamedAddress(code, f"_Z{code}x", frames)


@pytest.fixture
def fake() -> FakeHelpers:
    return FakeHelpers()


@pytest.fixture
def names(fake: FakeHelpers) -> Iterator[NameService]:
    made = NameService(fake, lambda: fake.now_s)  # type: ignore[arg-type]
    yield made
    made.close()


@pytest.fixture
def module(tmp_path: Path) -> Module:
    path = compiled(tmp_path, SOURCE, "-g", "-O1")
    cache = ModuleCache()
    found = cache.get(cache.open(open_file(path), str(path), "me", None))
    assert found is not None
    return found


def named(service: NameService, module: Module, *codes: int, owner: str = "me") -> dict[int, NamedAddress]:
    """The names when nothing is pending any more."""
    places = [(code, code) for code in codes]
    service.names_so_far(owner, module, places)
    assert service.wait(owner, 30)
    return service.names_so_far(owner, module, places)


def test_a_real_program(module: Module, tmp_path: Path) -> None:
    """Functions and lines come from a helper; the second question needs none."""
    service = NameService(helpers())
    address = nm(tmp_path / "program")["hidden"]
    assert service.names_so_far("me", module, [(address, address)]) == {}
    assert service.wait("me", 30)
    found = service.names_so_far("other", module, [(address, address)])[address]
    assert (found.symbol, found.frames) == ("hidden", (SourceFrame("hidden", f"{tmp_path}/program.c:1"),))
    assert not service.is_pending("other")


def test_nobody_waits(names: NameService, fake: FakeHelpers, module: Module) -> None:
    """Names that are still unknown are missing from the answer, and pending."""
    fake.gate.clear()
    assert names.names_so_far("me", module, [(1, 1)]) == {}
    assert names.is_pending("me")
    assert not names.wait("me", 0.01)
    fake.gate.set()
    assert names.wait("me", 30)
    assert names.names_so_far("me", module, [(1, 1)])[1].symbol == "readable _Z1x"


def test_a_name_on_which_the_demangler_fails_fails_alone(
    names: NameService, fake: FakeHelpers, module: Module
) -> None:
    """Those before and behind it are readable."""
    fake.fails = {"_Z2x"}
    found = named(names, module, 1, 2, 3)
    assert [found[code].symbol for code in (1, 2, 3)] == ["readable _Z1x", "_Z2x", "readable _Z3x"]


def test_a_process_over_its_budget_gets_no_names_and_its_neighbour_does(
    names: NameService, fake: FakeHelpers, module: Module
) -> None:
    """It is counted, and gets some again when time has passed."""
    fake.cost_s = 2 * name_service.BUDGET_S
    named(names, module, 1)
    assert named(names, module, 2) == {}
    assert names.given_up("me") == 1
    fake.cost_s = 0.0
    assert named(names, module, 3, owner="neighbour")
    assert names.given_up("neighbour") == 0
    fake.now_s += 9 * name_service.BUDGET_S / name_service._BUDGET_SHARE
    assert named(names, module, 2)


def test_a_loaded_machine_takes_nothing_from_the_budget(
    names: NameService, fake: FakeHelpers, module: Module
) -> None:
    """The CPU time of a job counts, however long it waited for a CPU."""
    fake.cost_s, fake.said_s = 0.9 * name_service.BUDGET_S, 0.01
    for code in range(4):
        assert named(names, module, code)
    assert names.given_up("me") == 0


@pytest.mark.parametrize("said_s", [0.0, -1e9, float("nan"), float("inf")])
def test_a_helper_that_lies_about_its_time(
    names: NameService, fake: FakeHelpers, module: Module, said_s: float
) -> None:
    """It is believed to a part of the time by the clock only."""
    fake.cost_s, fake.said_s = 20 * name_service.BUDGET_S, said_s
    named(names, module, 1)
    assert names.is_over_budget("me")
    names.forget("me")
    fake.cost_s = 0.0
    fake.now_s += 21 * 20 * name_service.BUDGET_S / name_service._BUDGET_SHARE
    assert named(names, module, 2)


def test_users_take_turns_however_many_processes_one_has(
    names: NameService, fake: FakeHelpers, module: Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the one that is under way the other user's is next."""
    monkeypatch.setattr(name_service, "_THREADS", 1)
    fake.cost_s = 0.5
    fake.gate.clear()
    crowd = [f"one of many {number}" for number in range(5)]
    for number, owner in enumerate(crowd):
        names.enrol(owner, 1_000)
        names.names_so_far(owner, module, [(number, number)])
    names.enrol("alone", 1_001)
    names.names_so_far("alone", module, [(23, 23)])
    fake.gate.set()
    assert all(names.wait(owner, 30) for owner in (*crowd, "alone"))
    assert fake.codes.index(23) <= 1


def test_a_file_whose_lines_fail_has_symbols(
    names: NameService, fake: FakeHelpers, module: Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request is repeated once, without lines."""
    answers = fake.answers

    def failing(job: str, arguments: Any, *rest: Any, **limits: float) -> Iterator[Any]:
        if job != DEMANGLE_JOB and arguments[1]:
            raise HelperFailed("no answer in time")
        return answers(job, arguments, *rest, **limits)

    monkeypatch.setattr(fake, "answers", failing)
    assert named(names, module, 1)[1] == NamedAddress(1, "readable _Z1x")
    assert module.lines_failed


def test_a_module_that_was_closed_is_asked_for_again(names: NameService, module: Module) -> None:
    """Its pending names stay unknown, so its successor is asked."""
    module.close()
    assert named(names, module, 1) == {}


def test_a_file_that_could_not_be_read_in_time_is_asked_again_later(
    names: NameService, fake: FakeHelpers, module: Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not at once; an overloaded machine takes no name away for good."""
    answers = fake.answers

    def failing(*_arguments: Any, **_limits: float) -> Iterator[Any]:
        raise HelperFailed("no answer in time")

    monkeypatch.setattr(fake, "answers", failing)
    assert named(names, module, 1) == {}
    monkeypatch.setattr(fake, "answers", answers)
    assert named(names, module, 1) == {}
    assert not names.is_pending("me")
    fake.now_s += name_service._AGAIN_S
    assert named(names, module, 1)[1].symbol == "readable _Z1x"
