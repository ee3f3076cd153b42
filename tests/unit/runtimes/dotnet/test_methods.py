"""Names of methods, and when they are requested from a process."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

import pytest

from bpfleakd.model.address_space import JitModule
from bpfleakd.model.code.method import Method
from bpfleakd.runtimes.dotnet import stream_jobs
from bpfleakd.runtimes.dotnet.diagnostics import DiagnosticsError
from bpfleakd.runtimes.dotnet.method_look import Methods
from bpfleakd.runtimes.dotnet.methods import DotnetMethods, MethodTable
from bpfleakd.runtimes.dotnet.stream_jobs import RundownPart

from .streams import StreamWriter, WrittenEvent, method, module

S = 1_000_000_000
SHOP = module(7, "/srv/Shop.dll")


def rundown(*events: WrittenEvent) -> Methods:
    """A helper's answer for a stream with these events."""
    ours, theirs = socket.socketpair()
    parts: list[RundownPart] = []
    with ours, theirs:
        theirs.sendall(StreamWriter().events([*events, SHOP]).end())
        theirs.shutdown(socket.SHUT_WR)
        stream_jobs.rundown([ours.fileno()], None, parts.append)
    return Methods([code for part in parts for code in part.code], dict(parts[-1].modules))


class Looks:
    """Answers in turn to looks; the last one again and again."""

    def __init__(self, *answers: Methods | DiagnosticsError) -> None:
        self.count = 0
        self._answers = list(answers)
        self._done = threading.Semaphore(0)

    def __call__(self) -> Methods:
        self.count += 1
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        self._done.release()
        if isinstance(answer, DiagnosticsError):
            raise answer
        return answer

    def refresh(self, methods: DotnetMethods, now_ns: int) -> None:
        """Begin a look and take it in."""
        before = self.count
        methods.refresh(now_ns)
        for thread in threading.enumerate():
            if thread.name == "dotnet-methods":
                thread.join()
        if self.count > before:
            methods.refresh(now_ns)


def test_a_table_finds_methods_by_range() -> None:
    """Start and size count; there is no match outside."""
    table = MethodTable()
    table.add(rundown(method("Shop.Program", "Main", 0x1000, 0x40), method("Shop.Cart", "Add", 0x1040, 8)))
    assert [table.find(address) for address in (0xFFF, 0x1000, 0x103F, 0x1047, 0x1048)] == [
        (),
        (Method("Shop.Program.Main", "Shop"),),
        (Method("Shop.Program.Main", "Shop"),),
        (Method("Shop.Cart.Add", "Shop"),),
        (),
    ]


def test_code_that_was_freed_keeps_its_name_until_there_is_other_code() -> None:
    """A site of a method that was compiled again is not forgotten."""
    table = MethodTable()
    table.add(rundown(method("A", "old", 0x1000, 0x40), method("A", "gone", 0x2000, 0x40)))
    table.add(rundown(method("A", "new", 0x1010, 0x10, method_id=2)))
    names = {hex(a): [m.name for m in table.find(a)] for a in (0x1000, 0x1010, 0x2000)}
    assert names == {"0x1000": ["A.old"], "0x1010": ["A.new"], "0x2000": ["A.gone"]}


class TestWhenItIsAsked:
    """DotnetMethods."""

    @pytest.fixture
    def make(self) -> Callable[..., tuple[DotnetMethods, Looks]]:
        def made(*answers: Methods | DiagnosticsError) -> tuple[DotnetMethods, Looks]:
            looks = Looks(*answers)
            return DotnetMethods(looks, lambda _methods: {}, 3 * S), looks

        return made

    def test_not_while_the_process_starts(self, make: Callable[..., tuple[DotnetMethods, Looks]]) -> None:
        methods, looks = make(rundown(method("A", "f", 0x1000, 8)))
        looks.refresh(methods, 2 * S)
        assert looks.count == 0
        looks.refresh(methods, 3 * S)
        assert (looks.count, methods.generation) == (1, 1)
        assert [m.name for m in methods.find(0x1000)] == ["A.f"]

    def test_again_when_code_without_a_name_is_met(
        self, make: Callable[..., tuple[DotnetMethods, Looks]]
    ) -> None:
        """Half a minute after the last time, and not without a reason."""
        methods, looks = make(
            rundown(method("A", "f", 0x1000, 8)), rundown(method("A", "g", 0x2000, 8, method_id=2))
        )
        looks.refresh(methods, 3 * S)
        looks.refresh(methods, 100 * S)
        assert (looks.count, methods.find(0x2000)) == (1, None)
        looks.refresh(methods, 101 * S)
        assert [m.name for m in methods.find(0x2000)] == ["A.g"]
        assert methods.find(0x3000) is None
        looks.refresh(methods, 130 * S)
        assert looks.count == 2
        looks.refresh(methods, 131 * S)
        assert looks.count == 3

    def test_less_often_for_what_has_no_name(self, make: Callable[..., tuple[DotnetMethods, Looks]]) -> None:
        """Stubs are not methods: an address is looked up once, and more of them cause fewer look-ups."""
        methods, looks = make(rundown(method("A", "f", 0x1000, 8)))
        for second in range(3, 1_803):
            methods.find(0x10_0000 + second)
            looks.refresh(methods, second * S)
        assert looks.count <= 8
        count = looks.count
        for second in range(1_803, 6_000):
            methods.find(0x10_0000 + 3 + second % 1_000)
            looks.refresh(methods, second * S)
        assert looks.count <= count + 1

    def test_what_was_compiled_since_the_first_look(
        self, make: Callable[..., tuple[DotnetMethods, Looks]]
    ) -> None:
        """By assembly: compiled code that is new, each once. A question brings about the next look."""
        old = [method("A", "f", 0x1000, 8), method("A", "ahead", 0x9000, 8, method_id=3, is_jitted=False)]
        new = [method("A", "g", n << 12, 16, method_id=n) for n in (4, 5)]
        ahead = method("A", "used", 0xA000, 8, method_id=6, is_jitted=False)
        dynamic = method("dynamicClass", "h", 0xB000, 5, method_id=7, module_id=8)
        methods, looks = make(rundown(*old), rundown(*old, *new, ahead, dynamic))
        looks.refresh(methods, 3 * S)
        assert list(methods.compiled()) == []
        looks.refresh(methods, 32 * S)
        assert looks.count == 1
        for second in (33, 63, 93):
            looks.refresh(methods, second * S)
            assert list(methods.compiled()) == [JitModule("Shop", 2, 32), JitModule("(no module)", 1, 5)]
        assert looks.count == 4
        looks.refresh(methods, 123 * S)
        looks.refresh(methods, 999 * S)
        assert looks.count == 5

    def test_a_request_does_not_wait_for_stubs(
        self, make: Callable[..., tuple[DotnetMethods, Looks]]
    ) -> None:
        """Their looks become rare, as they give nothing."""
        methods, looks = make(rundown(method("A", "f", 0x1000, 8)))
        for second in range(3, 1_803):
            methods.find(0x10_0000 + second)
            looks.refresh(methods, second * S)
        count = looks.count
        methods.compiled()
        looks.refresh(methods, 1_803 * S)
        assert looks.count == count + 1

    def test_a_user_whose_processes_do_not_answer_delays_no_other(self) -> None:
        """Four looks of one user at a time, sixteen of all."""
        answered = threading.Event()

        def waiting() -> Methods:
            answered.wait()
            raise DiagnosticsError("late")

        def looking(uids: list[int]) -> int:
            for uid in uids:
                DotnetMethods(waiting, lambda _methods: {}, 0, uid).refresh(S)
            return sum(thread.name == "dotnet-methods" for thread in threading.enumerate())

        try:
            assert looking([1000] * 40) == 4
            assert looking([0]) == 5
            assert looking(list(range(1, 100))) == 16
        finally:
            answered.set()
        for thread in threading.enumerate():
            if thread.name == "dotnet-methods":
                thread.join()
        looks = Looks(rundown(method("A", "f", 0x1000, 8)))
        looks.refresh(DotnetMethods(looks, lambda _methods: {}, 0, 1000), S)
        assert looks.count == 1

    def test_given_up(self, make: Callable[..., tuple[DotnetMethods, Looks]]) -> None:
        """Three failures, and why."""
        methods, looks = make(DiagnosticsError("it does not answer within 5 s"))
        for second in range(3, 1_000):
            methods.find(second)
            looks.refresh(methods, second * S)
        assert (looks.count, methods.failure) == (3, "it does not answer within 5 s")
