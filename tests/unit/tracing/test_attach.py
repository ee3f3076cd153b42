"""From a pid to probes: in order, all or nothing, on real processes and a kernel that is made up."""

from __future__ import annotations

import errno
import os
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from bpfleakd import errors
from bpfleakd.kernel.abi import RecordingState
from bpfleakd.kernel.probes.links import ProbePoint
from bpfleakd.kernel.probes.points import FunctionProbe, SearchedFile, WantedFunction, search_file
from bpfleakd.model.code.mapping import Mapping
from bpfleakd.model.code.probe import FunctionRole
from bpfleakd.model.process import ProcessId, TracingRequest
from bpfleakd.process.files.process_code import ProcessCode, open_code
from bpfleakd.process.process import GONE
from bpfleakd.sandbox.helpers import Helpers
from bpfleakd.tracing.attaching.attach import Attacher
from bpfleakd.tracing.attaching.discovery import Discovery

from ..elf.building import compiled
from ..helping import helpers
from .doubles import FakeMaps, FakePins, FakeProcess
from .programs import running, without_main_thread

SLOT = 23
EXACT = TracingRequest()


class Kernel(FakeMaps):
    """Maps, linker and unwinding in one: records the order of calls."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[str] = []
        self.fails: dict[str, BaseException] = {}
        self.points: dict[str, Sequence[ProbePoint]] = {}
        self.links: list[int] = []
        self.adopted: list[tuple[tuple[int, int], int]] = []
        self.forgotten: list[int] = []
        self.pins = FakePins()
        self.noted: list[int] = []
        self.code = SimpleNamespace(begin=lambda pid, mappings: self.noted.append(len(mappings)))

    def process_pins(self, id_: ProcessId) -> FakePins:
        self.pins.id = id_
        return self.pins

    def _step(self, name: str) -> None:
        self.steps.append(name)
        if name in self.fails:
            raise self.fails[name]

    # Maps

    def add_process(self, pid: int, live_blocks: int) -> None:
        assert live_blocks == 1_009
        self._step("add")
        self.processes[pid] = FakeProcess(RecordingState.STOPPED)

    def adopt_process(self, pid: int) -> bool:
        return pid in self.processes

    def remove_process(self, pid: int) -> None:
        self._step("remove")
        del self.processes[pid]

    def slot_of(self, pid: int) -> int:
        assert pid in self.processes
        return SLOT

    def set_state(self, pid: int, state: RecordingState) -> None:
        self._step(state.name.lower())
        self.processes[pid].state = state

    # Linker
    shares_rare = False

    def link(
        self, path: str, points: Sequence[ProbePoint], _pid: int, slot: int, file: tuple[int, int]
    ) -> list[int]:
        assert slot == SLOT
        assert file == (os.stat(path).st_dev, os.stat(path).st_ino)
        name = os.path.realpath(path).rsplit("/", 1)[-1]
        self._step(f"link {name.split('.')[0].split('-')[0]}")
        self.points[os.path.realpath(path)] = points
        self.links.append(os.memfd_create("bpfleakd-link"))
        return [self.links[-1]]

    def adopt(self, file: tuple[int, int], pid: int, links: Sequence[int]) -> None:
        assert links
        self.adopted.append((file, pid))

    def forget(self, pid: int) -> None:
        assert self.open_links == 0
        self.forgotten.append(pid)

    # Unwinding

    def begin(self, code: ProcessCode) -> None:
        assert code.mappings
        self._step("begin")

    def follow(self, code: ProcessCode, wait_s: float) -> None:
        assert code.mappings
        assert wait_s == 0
        self._step("follow")

    def finish(self, _pid: int, wait_s: float) -> None:
        assert wait_s >= 0
        self._step("finish")

    def release(self, _pid: int) -> None:
        self._step("release")

    @property
    def open_links(self) -> int:
        return sum(is_open(fd) for fd in self.links)


def is_open(fd: int) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{fd}").startswith("/memfd:bpfleakd-link")
    except FileNotFoundError:
        return False


def open_pidfds() -> int:
    """How many processes are held."""
    links = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:
            continue
    return sum("pidfd" in link for link in links)


_known_probes: dict[str, list[FunctionProbe]] = {}


def remembered_probes(
    helpers: Helpers, file: SearchedFile, functions: Sequence[WantedFunction]
) -> list[FunctionProbe]:
    """The real probe points of files; the disassembler takes its time, once for all tests."""
    if file.name not in _known_probes:
        _known_probes[file.name] = search_file(helpers, file, functions)
    return _known_probes[file.name]


def nothing_to_search(_helpers: Helpers, file: SearchedFile, _functions: object) -> list[FunctionProbe]:
    raise AssertionError(file.name)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bpfleakd.kernel.probes.point_cache.search_file", remembered_probes)


@pytest.fixture
def kernel() -> Kernel:
    return Kernel()


@pytest.fixture
def attacher(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> Attacher:
    # The processes are real, and have no breakpoints.
    monkeypatch.setattr("bpfleakd.tracing.attaching.attachment.missing_breakpoints", lambda *_: [])
    pins = SimpleNamespace(process=kernel.process_pins, is_mounted=True)
    return Attacher(kernel, kernel, kernel, pins, Discovery(helpers()), live_blocks=1_009)  # type: ignore[arg-type]


@pytest.fixture
def pid() -> Iterator[int]:
    with running() as pid:
        yield pid


@pytest.fixture(autouse=True)
def _nothing_is_left(kernel: Kernel) -> Iterator[None]:
    """Whatever a test does, no link and no process is held after it."""
    before = open_pidfds()
    yield
    assert open_pidfds() == before
    assert kernel.open_links == 0


def test_everything_in_order(attacher: Attacher, kernel: Kernel, pid: int) -> None:
    """Tables before probes, all before the recording; and back again in the other order."""
    attachment = attacher.attach(pid, EXACT)

    assert kernel.steps[:2] == ["add", "begin"]
    assert kernel.noted == [len(attachment.mappings)]
    assert sorted(kernel.steps[2:-2]) == ["link ld", "link libc"]
    assert kernel.steps[-2:] == ["finish", "recording"]
    assert (attachment.process.id.pid, attachment.process.comm) == (pid, "sh")
    assert kernel.open_links == len(attachment.links) == 2

    kernel.steps.clear()
    attacher.stop(attachment)
    assert kernel.steps == ["stopped"]
    assert kernel.open_links == 0
    assert kernel.forgotten == [pid]
    assert pid in kernel.processes
    assert not kernel.pins.committed
    attacher.clear(attachment)
    assert kernel.steps == ["stopped", "release", "remove"]


def test_what_is_probed(attacher: Attacher, kernel: Kernel, pid: int) -> None:
    """The allocator's functions with their roles; the loader's is probed too, but is none of them."""
    attachment = attacher.attach(pid, EXACT)
    roles = {probe.function: probe.role for probe in attachment.probes}
    assert roles["malloc"] is FunctionRole.SIZE_FIRST
    assert roles["free"] is FunctionRole.RELEASE
    assert roles["posix_memalign"] is FunctionRole.POSIX_MEMALIGN
    assert FunctionRole.LIBRARIES_CHANGED not in roles.values()
    linked = [point for points in kernel.points.values() for point in points]
    shown = {(probe.offset, probe.role) for probe in attachment.probes}
    (hidden,) = {(point.offset, point.role) for point in linked} - shown
    assert hidden[1] is FunctionRole.LIBRARIES_CHANGED
    attacher.stop(attachment)


def test_files_are_looked_into_once(attacher: Attacher, monkeypatch: pytest.MonkeyPatch, pid: int) -> None:
    """The probe points of a library that was seen before need no disassembler."""
    attacher.stop(attacher.attach(pid, EXACT))

    monkeypatch.setattr("bpfleakd.kernel.probes.point_cache.search_file", nothing_to_search)
    with running() as other:
        attacher.stop(attacher.attach(other, EXACT))


def test_the_usual_c_library_is_looked_into_beforehand(
    attacher: Attacher, kernel: Kernel, monkeypatch: pytest.MonkeyPatch, pid: int
) -> None:
    """The first process that is attached to does not wait for the disassembler."""
    attacher.prepare()
    assert kernel.steps == []

    monkeypatch.setattr("bpfleakd.kernel.probes.point_cache.search_file", nothing_to_search)
    attacher.stop(attacher.attach(pid, EXACT))


LATER = """
.globl malloc, free
.type malloc, @function
.type free, @function
malloc: push %rbx
ret
free: push %rbx
ret
"""


class TestFollow:
    """Libraries that come while a process is traced."""

    @pytest.fixture
    def later(self, tmp_path: Path) -> Mapping:
        """A mapping of another allocator, which the process has not got: found by its path then."""
        library = compiled(tmp_path, LATER, "-shared", "-nostdlib", name="later.so", suffix=".s")
        return Mapping(0x7000, 0x8000, 0, "fe:01", library.stat().st_ino, str(library), True, False, True)

    def test_a_new_allocator(self, attacher: Attacher, kernel: Kernel, pid: int, later: Mapping) -> None:
        """It is probed besides those that are, and shown; all go together."""
        before = attacher.attach(pid, EXACT)
        mappings = (*before.mappings, later)
        after = attacher.follow(before, open_code(pid, mappings))

        assert kernel.steps[-1] == "link later"
        assert after.links[: len(before.links)] == before.links
        assert len(after.links) == len(before.links) + 1
        new = after.probes[len(before.probes) :]
        assert {(p.allocator, p.function, p.module) for p in new} == {
            ("other", "malloc", later.path),
            ("other", "free", later.path),
        }
        assert after.mappings == mappings

        assert attacher.follow(after, open_code(pid, mappings)) == after
        attacher.stop(after)
        assert kernel.open_links == 0

    def test_nothing_new(self, attacher: Attacher, kernel: Kernel, pid: int) -> None:
        """Most libraries hold no allocator."""
        attachment = attacher.attach(pid, EXACT)
        kernel.steps.clear()
        assert attacher.follow(attachment, attacher.read_code(attachment)) == attachment
        assert kernel.steps == []
        attacher.stop(attachment)

    def test_one_that_cannot_be_probed(
        self, attacher: Attacher, kernel: Kernel, pid: int, later: Mapping
    ) -> None:
        """The recording of the process continues as far as before."""
        before = attacher.attach(pid, EXACT)
        kernel.fails["link later"] = OSError(errno.EIO, "Input/output error")
        after = attacher.follow(before, open_code(pid, (*before.mappings, later)))
        assert (after.links, after.probes, after.files) == (before.links, before.probes, before.files)
        attacher.stop(after)


class TestAdopt:
    """Another daemon finds the pins."""

    def test_a_process_that_goes_on(self, attacher: Attacher, kernel: Kernel, pid: int) -> None:
        """The same probes without new links; libraries loaded meanwhile get unwind tables."""
        before = attacher.attach(pid, EXACT)
        kernel.steps.clear()
        after = attacher.adopt(kernel.pins)  # type: ignore[arg-type]
        assert (after.process.id, after.mappings, after.files) == (
            before.process.id,
            before.mappings,
            before.files,
        )
        assert len(after.links) == len(before.links)
        assert kernel.steps == ["follow"]
        attacher.release(before)
        attacher.stop(after)

    def test_one_that_has_ended(self, attacher: Attacher, kernel: Kernel) -> None:
        """It is gone, and its tables are there to be read."""
        with running() as pid:
            attacher.release(attacher.attach(pid, EXACT))
        gone = attacher.adopt(kernel.pins)  # type: ignore[arg-type]
        assert gone.pidfd == GONE
        assert gone.mappings
        attacher.stop(gone)
        attacher.clear(gone)
        assert kernel.processes == {}

    def test_one_that_called_exec(self, attacher: Attacher, kernel: Kernel, pid: int) -> None:
        """It runs, but is another program."""
        attacher.release(attacher.attach(pid, EXACT))
        kernel.processes[pid].state = RecordingState.EXECED
        gone = attacher.adopt(kernel.pins)  # type: ignore[arg-type]
        assert gone.pidfd == GONE
        attacher.stop(gone)

    def test_a_file_whose_links_were_being_made(self, attacher: Attacher, kernel: Kernel, pid: int) -> None:
        """It is not taken for one that is probed, so that it will be."""
        before = attacher.attach(pid, EXACT)
        attacher.release(before)
        last = before.files[-1]
        kernel.pins.staged[last.number] = kernel.pins.committed.pop(last.number)
        after = attacher.adopt(kernel.pins)  # type: ignore[arg-type]
        assert after.files == before.files[:-1]
        attacher.stop(after)

    @pytest.mark.parametrize("which", ["a link", "a file", "a breakpoint"])
    def test_one_that_is_not_probed_any_more(
        self,
        attacher: Attacher,
        kernel: Kernel,
        pid: int,
        which: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Its calls meanwhile were not recorded: it is not adopted as exact."""
        before = attacher.attach(pid, EXACT)
        attacher.release(before)
        match which:
            case "a link":
                os.close(kernel.pins.committed[0].pop())
            case "a file":
                for link in kernel.pins.committed.pop(0):
                    os.close(link)
            case "a breakpoint":
                monkeypatch.setattr(
                    "bpfleakd.tracing.attaching.attachment.missing_breakpoints", lambda *_: before.probes
                )
        with pytest.raises(ValueError, match="gone"):
            attacher.adopt(kernel.pins)  # type: ignore[arg-type]
        attacher.discard(kernel.pins)  # type: ignore[arg-type]

    @pytest.mark.parametrize("lacks", ["record", "tables", "recording"])
    def test_one_that_is_not_whole(self, attacher: Attacher, kernel: Kernel, pid: int, lacks: str) -> None:
        """An attach or a detach that was not finished; nothing is left of it."""
        attacher.release(attacher.attach(pid, EXACT))
        match lacks:
            case "record":
                kernel.pins.records["attachment"].text = b"not a record"
            case "tables":
                del kernel.processes[pid]
            case "recording":
                kernel.processes[pid].state = RecordingState.STOPPED
        with pytest.raises(ValueError, match=r"record|tables|being attached"):
            attacher.adopt(kernel.pins)  # type: ignore[arg-type]
        kernel.processes.setdefault(pid, FakeProcess())
        attacher.discard(kernel.pins)  # type: ignore[arg-type]
        assert kernel.processes == {}
        assert not kernel.pins.exists


FAILURES = [
    ("link libc", OSError(errno.ESRCH, "No such process"), errors.NoSuchProcess),
    ("link libc", OSError(errno.EACCES, "Permission denied"), errors.AccessDenied),
    ("link libc", OSError(errno.EINVAL, "Invalid argument"), errors.KernelError),
    ("link ld", OSError(errno.EINVAL, "Invalid argument"), errors.KernelError),
    ("finish", OSError(errno.ENOMEM, "Cannot allocate memory"), errors.KernelError),
    ("begin", RuntimeError("can't start new thread"), RuntimeError),
    ("recording", OSError(errno.E2BIG, "Argument list too long"), errors.KernelError),
    ("recording", KeyboardInterrupt(), KeyboardInterrupt),
]


@pytest.mark.parametrize(("step", "failure", "raised"), FAILURES)
def test_all_or_nothing(
    attacher: Attacher, kernel: Kernel, pid: int, step: str, failure: BaseException, raised: type
) -> None:
    """Whatever fails, and however: the tables are gone, and so are the links that were made before."""
    kernel.fails[step] = failure
    with pytest.raises(raised):
        attacher.attach(pid, EXACT)
    assert kernel.processes == {}
    assert kernel.steps[-2:] == ["release", "remove"]
    assert not kernel.pins.exists


def test_no_room_in_the_tables(attacher: Attacher, kernel: Kernel, pid: int) -> None:
    """Entries that could not be added are not removed."""
    kernel.fails["add"] = errors.CapacityError("no room")
    with pytest.raises(errors.CapacityError):
        attacher.attach(pid, EXACT)
    assert kernel.steps == ["add"]


def test_exec_during_the_attach(
    attacher: Attacher, kernel: Kernel, pid: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that became another one before the recording began is not recorded under its old name."""

    def finish(_pid: int, _wait_s: float) -> None:
        kernel.processes[pid].state = RecordingState.EXECED

    monkeypatch.setattr(kernel, "finish", finish)
    with pytest.raises(errors.NoSuchProcess, match="called exec"):
        attacher.attach(pid, EXACT)
    assert "recording" not in kernel.steps
    assert kernel.processes == {}


class TestTargets:
    """Processes that cannot be attached to: each with its reason, and nothing done."""

    @pytest.fixture(autouse=True)
    def _nothing_is_done(self, kernel: Kernel) -> Iterator[None]:
        yield
        assert kernel.steps == []

    def test_none(self, attacher: Attacher) -> None:
        """A pid that does not exist."""
        with pytest.raises(errors.NoSuchProcess, match="no process 4194304"):
            attacher.attach(4_194_304, EXACT)

    def test_a_thread(self, attacher: Attacher) -> None:
        """A tid that is not a pid: the error names its process."""
        done, tids = threading.Event(), []
        thread = threading.Thread(target=lambda: (tids.append(threading.get_native_id()), done.wait()))
        thread.start()
        while not tids:
            pass
        try:
            with pytest.raises(errors.NoSuchProcess, match=f"thread of process {os.getpid()}"):
                attacher.attach(tids[0], EXACT)
        finally:
            done.set()
            thread.join()

    def test_ourselves(self, attacher: Attacher) -> None:
        """The daemon's own pid."""
        with pytest.raises(errors.TargetRefused, match="itself"):
            attacher.attach(os.getpid(), EXACT)

    def test_a_zombie(self, attacher: Attacher) -> None:
        """A child that ended and was not waited for."""
        with subprocess.Popen(["true"]) as child:
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
            with pytest.raises(errors.TargetRefused, match="zombie"):
                attacher.attach(child.pid, EXACT)

    def test_a_process_without_its_main_thread(self, attacher: Attacher, tmp_path: Path) -> None:
        """It runs, but its mappings cannot be read."""
        with (
            running(without_main_thread(tmp_path)) as headless,
            pytest.raises(errors.TargetRefused, match="main thread"),
        ):
            attacher.attach(headless, EXACT)

    def test_no_allocator(self, attacher: Attacher, tmp_path: Path) -> None:
        """A static program has its malloc in itself, and without symbols nothing says where."""
        source = '#include <unistd.h>\nint main(void) { write(1, "\\n", 1); return pause(); }'
        with (
            running(compiled(tmp_path, source, "-static", "-s")) as static,
            pytest.raises(errors.NoAllocator, match="statically linked"),
        ):
            attacher.attach(static, EXACT)

    def test_no_allocator_in_anything(self, attacher: Attacher, tmp_path: Path) -> None:
        """Symbols there are, but none of an allocator."""
        source = (
            ".globl _start\n_start: mov $1, %eax; mov $1, %edi; lea text(%rip), %rsi; mov $1, %edx; syscall\n"
        )
        source += 'mov $34, %eax; syscall\ntext: .ascii "\\n"\n'
        with (
            running(compiled(tmp_path, source, "-static", "-nostdlib", suffix=".s")) as bare,
            pytest.raises(errors.NoAllocator, match="no known allocator"),
        ):
            attacher.attach(bare, EXACT)
