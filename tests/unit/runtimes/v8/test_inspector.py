"""The state of an inspector before and after the conversation: its address, handlers, functions."""

from __future__ import annotations

import ctypes
import os
import signal
import struct
from pathlib import Path

import msgspec
import pytest

from bpfleakd.process.remote_memory import RemoteMemory
from bpfleakd.runtimes.v8.inspector import UnknownAddress, inspector_address
from bpfleakd.runtimes.v8.inspector_jobs import _Profile, alive_functions
from bpfleakd.runtimes.v8.signal_handles import SignalHandles
from tests.unit.runtimes.v8.node_processes import write_process


@pytest.mark.parametrize(
    ("words", "options", "address"),
    [
        (["app.js"], "", "127.0.0.1:9229"),
        (["--inspect-port=9300", "app.js"], "", "127.0.0.1:9300"),
        (["-r", "x", "--debug-port", "9301", "app.js"], "", "127.0.0.1:9301"),
        (["app.js", "--inspect-port=9300"], "", "127.0.0.1:9229"),
        (["app.js"], "--max-old-space-size=90 --inspect-port=localhost:9302", "127.0.0.1:9302"),
        (["--inspect-port=9303", "app.js"], "--inspect-port=9302", "127.0.0.1:9303"),
        (["--inspect=0.0.0.0", "app.js"], "", "0.0.0.0:9229"),
        (["--inspect=[::1]:9304", "app.js"], "", "[::1]:9304"),
    ],
)
def test_where_it_will_be(tmp_path: Path, words: list[str], options: str, address: str) -> None:
    """As the options say that are Node's own, the command line before NODE_OPTIONS."""
    write_process(tmp_path, words, options)
    assert str(inspector_address(1, tmp_path)) == address


@pytest.mark.parametrize("option", ["--inspect-port=0", "--inspect=a.example:9229"])
def test_where_cannot_be_said(tmp_path: Path, option: str) -> None:
    """A random port, and a name that only the process can look up."""
    write_process(tmp_path, [option, "app.js"], "")
    with pytest.raises(UnknownAddress):
        inspector_address(1, tmp_path)


def test_a_function_answers_for_what_it_calls() -> None:
    """Node's and V8's own code is charged to the function of the program that leads there."""

    def node(number: int, name: str, url: str, size: float, *children: object) -> dict[str, object]:
        frame = {"functionName": name, "url": url, "lineNumber": 9, "scriptId": "1", "columnNumber": 1}
        return {"id": number, "callFrame": frame, "selfSize": size, "children": list(children)}

    tree = node(
        1,
        *("(root)", "", 0),
        node(
            2, "run", "file:///app.js", 10, node(3, "push", "node:buffer", 100), node(4, "(V8 API)", "", 1000)
        ),
        node(5, "start", "node:internal/main", 7),
    )
    samples = [{"nodeId": 3, "size": 1, "ordinal": 1}] * 2 + [{"nodeId": 5, "size": 1, "ordinal": 1}]
    profile = msgspec.convert({"head": tree, "samples": samples}, _Profile)

    functions, live_bytes = alive_functions(profile)

    assert live_bytes == 1117
    assert [(one.name, one.url, one.line, one.live_bytes, one.samples) for one in functions] == [
        ("run", "file:///app.js", 10, 1110, 2),
        ("start", "node:internal/main", 10, 7, 1),
    ]


class Loop:
    """A loop of libuv in this process, with handles of some types; a signal has its number."""

    def __init__(self, *handles: tuple[int, int]) -> None:
        self._pointer, self.loop = ctypes.create_string_buffer(8), ctypes.create_string_buffer(64)
        address = ctypes.addressof(self.loop)
        struct.pack_into("<Q", self._pointer, 0, address)
        self.handles = [ctypes.create_string_buffer(160) for _ in handles]
        places = [address + 16, *(ctypes.addressof(one) + 32 for one in self.handles)]
        for buffer, (type_, number) in zip(self.handles, handles, strict=True):
            struct.pack_into("<Qi", buffer, 8, address, type_)
            struct.pack_into("<i", buffer, 104, number)
        rings = [(self.loop, 16), *((buffer, 32) for buffer in self.handles)]
        for at, (buffer, place) in enumerate(rings):
            after, before = places[(at + 1) % len(places)], places[at - 1]
            struct.pack_into("<QQ", buffer, place, after, before)

    def has(self, number: int) -> bool:
        with RemoteMemory(os.getpid()) as memory:
            return SignalHandles(memory, ctypes.addressof(self._pointer)).has(number)


TIMER, SIGNAL = 13, 16


def test_signals_that_a_program_handles() -> None:
    """Only a handle for signals counts, and only of this signal."""
    assert Loop((TIMER, 0), (SIGNAL, signal.SIGUSR1), (TIMER, 0)).has(signal.SIGUSR1)
    assert not Loop((TIMER, signal.SIGUSR1), (SIGNAL, signal.SIGWINCH)).has(signal.SIGUSR1)
    assert not Loop().has(signal.SIGUSR1)


def test_memory_that_is_no_loop() -> None:
    """A ring that is broken, or handles of no type: nothing is concluded."""
    broken = Loop((TIMER, 0), (TIMER, 0))
    struct.pack_into("<Q", broken.handles[1], 40, 0x1234)
    other = Loop((99, 0))
    for loop in (broken, other):
        with pytest.raises(ValueError, match="its handles are"):
            loop.has(signal.SIGUSR1)
