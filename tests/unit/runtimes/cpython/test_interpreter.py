"""The interpreter that runs this test, found and read from its own /proc."""

from __future__ import annotations

import os
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import pytest
from msgspec.structs import replace

from bpfleakd.elf.image import ElfImage
from bpfleakd.kernel import abi
from bpfleakd.kernel.python_row import python_row
from bpfleakd.model.code.mapping import Mapping
from bpfleakd.process.mappings import read_mappings
from bpfleakd.process.remote_memory import RemoteMemory
from bpfleakd.runtimes.cpython import interpreter as module
from bpfleakd.runtimes.cpython.code_object import CodeObject, CodeObjectReader
from bpfleakd.runtimes.cpython.frames import PYTHON_FRAME, PythonFrames, code_address
from bpfleakd.runtimes.cpython.interpreter import (
    Interpreter,
    UntrustedInterpreter,
    find_interpreter,
    thread_states,
)
from bpfleakd.runtimes.cpython.layout import InstructionKind, layout_of, stated_layout
from bpfleakd.runtimes.cpython.walker import python_walk

PID = os.getpid()


@pytest.fixture
def memory() -> Iterator[RemoteMemory]:
    with RemoteMemory(PID) as memory:
        yield memory


def open_image(mapping: Mapping) -> ElfImage:
    return ElfImage.open(mapping.path)


def tids() -> set[int]:
    return {int(name) for name in os.listdir("/proc/self/task")}


@pytest.fixture
def interpreter(memory: RemoteMemory) -> Interpreter:
    found = find_interpreter(read_mappings(PID), open_image, memory, tids)
    assert found is not None
    return found


@contextmanager
def waiting_thread() -> Iterator[int]:
    """A thread that waits in a separate function; yields its tid."""
    ready, over = threading.Event(), threading.Event()

    def shelf() -> None:
        ready.set()
        over.wait()

    thread = threading.Thread(target=shelf)
    thread.start()
    ready.wait()
    try:
        assert thread.native_id is not None
        yield thread.native_id
    finally:
        over.set()
        thread.join()


def frames_of(memory: RemoteMemory, found: Interpreter, tid: int) -> list[tuple[int, int]]:
    """The code object and offset of each frame of a thread, newest first."""
    layout = found.layout
    # The thread may be newer than the pages that were read to find the interpreter.
    memory.renew()
    (state,) = (
        state
        for state in thread_states(memory, found.runtime, layout)
        if memory.word(state + layout.thread_id) == tid
    )
    frame = state
    for step in layout.frame_path:
        frame = memory.word(frame + step)
    frames = []
    while frame:
        code = memory.word(frame + layout.frame_code) & ~7
        at = memory.word(frame + layout.frame_instruction)
        frames.append((code, at - code - layout.code_adaptive))
        frame = memory.word(frame + layout.frame_previous)
    return frames


def test_the_version_is_that_of_the_running_interpreter(interpreter: Interpreter) -> None:
    """Not that of a file's name."""
    assert interpreter.layout.version == sys.version_info[:2]
    assert interpreter.loop


@pytest.mark.skipif(sys.version_info[:2] < (3, 11), reason="before, a thread is known by its pthread_t")
def test_frames_of_a_thread_are_named(memory: RemoteMemory, interpreter: Interpreter) -> None:
    """Function, file and line, as the thread's own frame objects have them."""
    reader = CodeObjectReader(memory, interpreter.layout, interpreter.types)
    with waiting_thread() as tid:
        found = [(reader.read(code), offset) for code, offset in frames_of(memory, interpreter, tid)]
        ident = next(thread.ident for thread in threading.enumerate() if thread.native_id == tid)
        frame = sys._current_frames()[ident]
        expected = []
        while frame is not None:
            expected.append((frame.f_code.co_qualname, frame.f_code.co_filename, frame.f_lineno))
            frame = frame.f_back
    named = [(code.function, code.file, code.line(offset)) for code, offset in found if code]
    assert [name for name in named if name[2] is not None] == expected
    assert any(name.endswith("<locals>.shelf") for name, _, _ in expected)


def test_what_is_no_code_object_is_none(memory: RemoteMemory, interpreter: Interpreter) -> None:
    """An address of something else, of nothing, and beyond all memory."""
    reader = CodeObjectReader(memory, interpreter.layout, interpreter.types)
    for address in (id("text"), id(object()), 0, 8, 1 << 46, 1 << 60, interpreter.runtime):
        assert reader.read(address) is None


def test_a_process_without_python_has_no_interpreter(memory: RemoteMemory) -> None:
    """A process that maps only other files has none either."""
    others = [mapping for mapping in read_mappings(PID) if "libc.so" in mapping.path]
    assert others
    assert find_interpreter(others, open_image, memory, tids) is None


def test_an_interpreter_under_another_name_is_found(memory: RemoteMemory) -> None:
    """By the definitions of its file: a program may embed it."""
    mappings = read_mappings(PID)
    renamed = [replace(mapping, path=mapping.path.replace("python", "shop")) for mapping in mappings]
    originals = dict(zip(renamed, mappings, strict=True))
    found = find_interpreter(renamed, lambda mapping: open_image(originals[mapping]), memory, tids)
    assert found is not None
    assert found.layout.version == sys.version_info[:2]


def test_the_version_is_read_from_the_file(memory: RemoteMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before 3.11 no symbol has it."""
    monkeypatch.setattr(module, "_stated_version", lambda *_: None)
    found = find_interpreter(read_mappings(PID), open_image, memory, tids)
    assert found is not None
    assert found.layout.version == sys.version_info[:2]


def test_threads_of_another_process_are_not_trusted(memory: RemoteMemory) -> None:
    """A layout that leads to other numbers than threads of the process is wrong."""
    with pytest.raises(UntrustedInterpreter, match="threads"):
        find_interpreter(read_mappings(PID), open_image, memory, lambda: {1 << 22})


def test_another_layout_is_not_trusted(memory: RemoteMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The type's own members say where they are."""
    wrong = replace(module.layout_of((3, 11)) or pytest.fail("no layout"), code_firstlineno=80)
    monkeypatch.setattr(module, "_layout", lambda *_: wrong)
    with pytest.raises(UntrustedInterpreter, match="layout"):
        find_interpreter(read_mappings(PID), open_image, memory, tids)


def test_pypy_is_recognised(memory: RemoteMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    """And reported as such."""
    monkeypatch.setattr(module, "_PYPY", "Py_Initialize")
    monkeypatch.setattr(module, "_NEEDED", {"nothing has this name"})
    with pytest.raises(UntrustedInterpreter, match="PyPy"):
        find_interpreter(read_mappings(PID), open_image, memory, tids)


def test_versions_that_are_not_known_have_no_layout() -> None:
    """The same for one that falsely claims to state it."""
    assert layout_of((3, 8)) is None
    assert layout_of((3, 13)) is None
    head = struct.pack("<8sQQ", b"xdebugpy", 0x030F00F0, 0).ljust(400, b"\0")
    assert stated_layout(head) == (None, False)
    assert stated_layout(bytes(400)) == (None, False)
    absurd = struct.pack("<8sQQ", b"xdebugpy", 0x030D00F0, 0) + b"\xff" * 400
    assert stated_layout(absurd) == (None, False)


def test_a_free_threaded_build_is_told() -> None:
    """By its own word."""
    head = struct.pack("<8sQQ", b"xdebugpy", 0x030E00F0, 1) + b"\x10\0\0\0\0\0\0\0" * 50
    layout, is_free_threaded = stated_layout(head)
    assert is_free_threaded
    assert layout is not None
    assert (layout.version, layout.instruction_kind) == ((3, 14), InstructionKind.POINTER)


def test_the_walker_is_told_all_of_it(interpreter: Interpreter) -> None:
    """Also that there is a loop."""
    row = python_row(python_walk(interpreter, None), sees_releases=True)
    assert row["sees_releases"]
    assert row["loop_count"] == len(interpreter.loop)
    assert row["loops"][0].item() == interpreter.loop[0]
    assert row["code_type"] == interpreter.types.code
    assert row["namespace_inode"] == 0
    assert row["frame_bytes"] <= abi.PYTHON_FRAME_BYTES
    other = python_row(python_walk(interpreter, os.stat("/proc/self/ns/pid")), sees_releases=False)
    assert not other["sees_releases"]
    assert other["namespace_inode"] == os.stat("/proc/self/ns/pid").st_ino


def word_of(address: int, unit: int, check: int) -> int:
    """As bpf/python.h makes it."""
    return PYTHON_FRAME | address >> 4 << 20 | unit << 6 | check >> 58


def test_words_become_methods(memory: RemoteMemory, interpreter: Interpreter) -> None:
    """With the line; a word that fails the check has no name, its neighbours in the segment neither."""
    reader = CodeObjectReader(memory, interpreter.layout, interpreter.types)

    def read(function: object) -> tuple[int, CodeObject]:
        address = id(function.__code__)  # type: ignore[attr-defined]
        code = reader.read(address)
        assert code is not None
        return address, code

    functions = (word_of, frames_of, tids, open_image, waiting_thread.__wrapped__)
    pairs = [read(function) for function in functions]
    words = [word_of(address, code.first_traced + 1, code.check) for address, code in pairs]
    assert [code_address(word) for word in words] == [address for address, _ in pairs]
    checks = [segment_check([code for _, code in pairs[:4]]), segment_check([pairs[4][1]])]
    frames = PythonFrames(reader, "python3", python_walk(interpreter, None))
    found = frames.find(words, checks)
    assert [methods[0].name for methods in found if methods] == [
        "word_of",
        "frames_of",
        "tids",
        "open_image",
        "waiting_thread",
    ]
    assert found[2] is not None
    assert (found[2][0].file, found[2][0].module) == ("test_interpreter.py", "test_interpreter")
    wrong = frames.find([words[0] ^ 1, *words[1:]], checks)
    assert wrong[:4] == [None] * 4
    assert wrong[4] == found[4]


def test_code_at_the_address_of_other_code_with_the_same_bits(interpreter: Interpreter) -> None:
    """One in 64 has them: the object is read again when nothing that was read fits the stack."""

    def code(name: str, check: int) -> CodeObject:
        return CodeObject(name, "shop.py", 1, b"", 0, (3, 11), check)

    before, after = code("before", 5 << 58 | 1), code("after", 5 << 58 | 2)
    now = [before]
    reader = mock.Mock(spec=CodeObjectReader)
    reader.read.side_effect = lambda _address: now[0]
    frames = PythonFrames(reader, "python3", python_walk(interpreter, None))
    word = word_of(0x7F0000001000, 1, before.check)
    assert word == word_of(0x7F0000001000, 1, after.check)
    for one in (before, after, before):
        now[0] = one if one is after else now[0]
        (methods,) = frames.find([word], [segment_check([one])])
        assert methods is not None
        assert methods[0].name == one.function


def segment_check(codes: list[CodeObject]) -> int:
    """hash_frame over the code objects' hashes, cut to 32 bits at each step, as in bpf/python.h."""
    value = 0
    for code in codes:
        word = code.check * 0xC6A4A7935BD1E995 % (1 << 64)
        word ^= word >> 47
        word = word * 0xC6A4A7935BD1E995 % (1 << 64)
        value = (value ^ word) * 0xC6A4A7935BD1E995 % (1 << 64) % (1 << 32)
    return value
