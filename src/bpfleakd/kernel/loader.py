"""Compiles, loads, tries and pins the programs; the only module that uses bcc.

bcc loads LLVM, some 100 MB that the daemon does not need afterwards. So this module runs as a child (`python
-m bpfleakd.kernel.loader`) that pins its programs and maps under bpffs and ends. `load` is the daemon's side.
The set of pins is named after the version of all its inputs: a daemon that finds a set of the same version
adopts it and starts no child.

Compiled programs are cached (compilation/compiled.py) if a directory is configured: the next start needs
no bcc, and takes a second less.

The loader tries the attach methods from the best to the oldest, unless one was configured, and uses the first
that records correctly (kernel/trial.py).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
import re
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

# lean_imports comes before all that imports structlog, asyncio or hashlib.
from bpfleakd import errors, lean_imports, pid_namespace  # noqa: F401
from bpfleakd.kernel import bpf, sampling
from bpfleakd.kernel.children.child import expect_ahead, run_child, serve
from bpfleakd.kernel.compilation.compiled import (
    CompileCache,
    CompiledPrograms,
    map_descriptors,
    with_descriptors,
)
from bpfleakd.kernel.compilation.kernel_layout import layout_flags
from bpfleakd.kernel.compilation.machine_code import check_stack
from bpfleakd.kernel.compilation.options import Capacities, LoadOptions
from bpfleakd.kernel.compilation.source import bpf_directory, flattened
from bpfleakd.kernel.maps import Maps
from bpfleakd.kernel.pinned_maps import CHANGED_SITE_BYTES, PINNED_MAPS, SPACE_EVENT_BYTES
from bpfleakd.kernel.pins import MAKING, PinnedSet, remove_pins
from bpfleakd.kernel.probes.links import Linker
from bpfleakd.kernel.programs import (
    AttachMethod,
    Program,
    SyscallMethod,
    WalkerKind,
    check_release,
    continuations_of,
    lasting_programs,
    probes_sites,
    programs_of,
    shared_programs_of,
)
from bpfleakd.kernel.trial import best_syscall_method, best_walker, try_linker

# Increment this whenever the data stored with the programs (kernel/blob.py) changes its format or meaning.
_PINS_FORMAT = 1
_LOADED = "loaded"
_MAP_OF_MAPS = re.compile(r'^BPF_(?:HASH|ARRAY)_OF_MAPS\((\w+),.*"(\w+)"', re.MULTILINE)
# Sizes of rings are in pages.
RING_FLAGS = [
    f"-DSPACE_EVENT_PAGES={SPACE_EVENT_BYTES // mmap.PAGESIZE}",
    f"-DCHANGED_SITE_PAGES={CHANGED_SITE_BYTES // mmap.PAGESIZE}",
]


class Loaded(Struct, frozen=True):
    """The pinned set: how to attach, and why better methods and walkers were passed over."""

    method: AttachMethod
    walker: WalkerKind
    syscalls: SyscallMethod
    passed_over: dict[str, str]
    was_compiled: bool


def version_of(options: LoadOptions) -> str:
    """The identity of a set of programs: its sources, its compile options, and the kernel's release."""
    digest = hashlib.blake2b(digest_size=16)
    directory = bpf_directory()
    for path in sorted(path for path in directory.rglob("*") if path.suffix in (".c", ".h")):
        digest.update(f"{path.relative_to(directory)}\0".encode() + path.read_bytes())
    request = _request(None, options)
    del request["cache_directory"]
    made_of = [_PINS_FORMAT, os.uname().release, request, _pid_namespace_flags(), RING_FLAGS]
    digest.update(json.dumps(made_of).encode())
    return digest.hexdigest()


def expect_load(directory: Path, options: LoadOptions) -> None:
    """Let a loader that was started ahead do everything but the pinning, unless `directory` has the set."""
    pins = PinnedSet.of(directory, version_of(options))
    # Later users report a directory that cannot be read.
    with contextlib.suppress(OSError):
        if not pins.exists:
            expect_ahead(__spec__.name, _request(_making(pins), options))


def load(pins: PinnedSet, options: LoadOptions) -> Loaded:
    """Compile, load and pin as the set `pins`, replacing its current content.

    Raises KernelUnsupported if no method works, AccessDenied, or KernelError for other failures.
    """
    check_release(os.uname().release)
    directory = _making(pins)
    try:
        reply = run_child(__spec__.name, _request(directory, options))
        pins.remove()
        PinnedSet(directory).record(_LOADED).write(json.dumps(reply).encode())
        os.rename(directory, pins.directory)
    except BaseException:
        with contextlib.suppress(OSError):
            remove_pins(directory)
        raise
    return _loaded(reply)


def reload(pins: PinnedSet) -> Loaded:
    """The data on a set that is already pinned. Raises KernelError if it cannot be read."""
    record = pins.record(_LOADED)
    try:
        return _loaded(json.loads(record.read() or b"nothing"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise errors.KernelError(f"{pins.directory} has no valid record: {error}") from error
    finally:
        record.close()


def _loaded(reply: dict[str, Any]) -> Loaded:
    return Loaded(
        AttachMethod(reply["method"]),
        WalkerKind(reply["walker"]),
        SyscallMethod(reply["syscalls"]),
        reply["passed_over"],
        reply["was_compiled"],
    )


def available_methods() -> tuple[tuple[AttachMethod, ...], dict[str, str]]:
    """The methods that work on this machine, best first, and why others were passed over.

    Pins nothing. Raises KernelUnsupported for a kernel that is too old.
    """
    check_release(os.uname().release)
    reply = run_child(__spec__.name, _request(None, LoadOptions(Capacities(8, 64, 64, 64))))
    return tuple(AttachMethod(name) for name in reply["methods"]), reply["passed_over"]


def _making(pins: PinnedSet) -> Path:
    return pins.directory.with_name(MAKING)


def _request(directory: Path | None, options: LoadOptions) -> dict[str, Any]:
    return {
        "directory": directory and str(directory),
        "capacities": asdict(options.capacities),
        "methods": [options.method] if options.method else list(AttachMethod),
        "walker": options.walker,
        "syscalls": options.syscalls,
        "cache_directory": options.cache_directory and str(options.cache_directory),
    }


# The child's side


def main(request: dict[str, Any]) -> dict[str, Any]:
    """Load the programs of the request; without a directory, only find out which methods work."""
    tried = _expected.pop() if _expected and _expected[0].request == request else _tried(request)
    if request["directory"] is None:
        return {"methods": tried.working, "passed_over": tried.passed_over}
    if tried.module is not None:
        tried.module.pin(Path(request["directory"]))
        return {
            "method": tried.working[0],
            "walker": tried.walker,
            "syscalls": tried.syscalls,
            "passed_over": tried.passed_over,
            "was_compiled": tried.module.was_compiled,
        }
    passed_over = tried.passed_over
    raise errors.KernelUnsupported(
        "this kernel has no way to attach uprobes that works: "
        + "; ".join(f"{name}: {reason}" for name, reason in passed_over.items()),
        "`bpfleakctl doctor` shows what is missing; attach_method: auto tries every way",
    )


def _prepare(request: dict[str, Any]) -> None:
    """Do everything for an expected request but the pinning; the real request reports failures."""
    with contextlib.suppress(errors.BpfleakdError):
        _expected.append(_tried(request))


class _Tried(Struct):
    """The result of trying a request's methods; `module` is loaded for the first that works."""

    request: dict[str, Any]
    walker: WalkerKind
    syscalls: SyscallMethod
    working: list[AttachMethod]
    passed_over: dict[str, str]
    module: _Module | None = None


# The results of expected requests.
_expected: list[_Tried] = []


def _tried(request: dict[str, Any]) -> _Tried:
    passed_over: dict[str, str] = {}
    walker = WalkerKind(request["walker"] or best_walker(passed_over))
    syscalls = SyscallMethod(request["syscalls"] or best_syscall_method(walker, os.uname().release))
    tried = _Tried(request, walker, syscalls, [], passed_over)
    is_to_pin = request["directory"] is not None
    cache_directory = request["cache_directory"]
    cache = CompileCache(Path(cache_directory) if cache_directory else None)
    for method in map(AttachMethod, request["methods"]):
        # A map of programs takes only programs of one attach type, so each method has a separate module.
        module = _Module(Capacities(**request["capacities"]), walker, syscalls, method, cache)
        if is_to_pin:
            module.begin_loading()
        failure = module.failure()
        if failure is not None:
            passed_over[method] = failure
            continue
        tried.working.append(method)
        if is_to_pin:
            tried.module = module
            break
    return tried


class _Module:
    """The programs for one method: the maps exist, and programs are loaded when they are needed."""

    def __init__(
        self,
        capacities: Capacities,
        walker: WalkerKind,
        syscalls: SyscallMethod,
        method: AttachMethod,
        cache: CompileCache,
    ) -> None:
        flags = [f"-DMAX_{name.upper()}={value}" for name, value in asdict(capacities).items()]
        flags += RING_FLAGS + layout_flags()
        if walker is WalkerKind.TAIL_CALLS:
            flags.append("-DWALK_BY_TAIL_CALLS")
        if syscalls is SyscallMethod.FUNCTIONS:
            flags.append("-DSYSCALLS_BY_FUNCTION")
        if probes_sites(walker, syscalls):
            flags.append("-DSYSCALLS_AT_SITES")
        if method is AttachMethod.SESSION:
            flags.append("-DATTACH_BY_SESSION")
        self._method = method
        self._walker = walker
        self._syscalls = syscalls
        if not set(shared_programs_of(method, walker)) <= set(programs_of(method)):
            flags.append("-DSHARED_PROGRAMS")
        self._compiled, self.was_compiled = _compiled(flags + _pid_namespace_flags(), self._programs(), cache)
        try:
            self._maps = self._compiled.make_maps()
            bpf.map_update(self._map_fd("sampling_curves"), bytes(4), sampling.curve())
        except OSError as error:
            raise _refusal(error, "make BPF maps") from error
        self._loads: dict[Program, Future[int]] = {}
        # The kernel verifies on as many cores as there are loading threads; the three largest programs take
        # most of the time.
        self._loading = ThreadPoolExecutor(max_workers=2, thread_name_prefix="load")

    def begin_loading(self) -> None:
        """Start verifying all programs while the method is tried, which mostly waits."""
        for program in self._programs():
            self._loading_of(program)

    def _programs(self) -> tuple[Program, ...]:
        by_walker = continuations_of(self._method).values() if self._walker is WalkerKind.TAIL_CALLS else ()
        return (*self._lasting(), *by_walker)

    def _lasting(self) -> tuple[Program, ...]:
        return lasting_programs(self._method, self._walker, self._syscalls)

    def failure(self) -> str | None:
        """Why the method does not work here; None if it works. Raises AccessDenied."""
        maps = Maps({name: os.dup(self._map_fd(name)) for name in PINNED_MAPS})
        try:
            fds = {program.function: self._program_fd(program) for program in programs_of(self._method)}
            self._install_continuations()
            try_linker(Linker(self._method, fds), maps)
        except PermissionError as error:
            raise _refusal(error, "load or attach BPF programs") from error
        except OSError as error:
            self._loading.shutdown(wait=False, cancel_futures=True)
            return error.strerror or str(error)
        finally:
            maps.close()
        return None

    def pin(self, directory: Path) -> None:
        """Pin maps and programs, replacing the pins of that directory."""
        try:
            programs = {each.function: self._program_fd(each) for each in self._lasting()}
        except OSError as error:
            raise _refusal(error, "load BPF programs") from error
        remove_pins(directory)
        try:
            directory.mkdir(parents=True)
            for name in self._map_names():
                bpf.object_pin(self._map_fd(name), directory / name)
            for function, fd in programs.items():
                bpf.object_pin(fd, directory / function)
        except OSError as error:
            raise errors.KernelError(
                f"cannot pin under {directory}: {error.strerror}",
                "bpffs must be mounted there: mount -t bpf bpf /sys/fs/bpf",
            ) from error

    def _map_names(self) -> tuple[str, ...]:
        # Without its pin, a map of programs is emptied when the loader ends.
        by_walker = continuations_of(self._method) if self._walker is WalkerKind.TAIL_CALLS else ()
        return (*PINNED_MAPS, *by_walker)

    def _map_fd(self, name: str) -> int:
        return self._maps[name]

    def _program_fd(self, program: Program) -> int:
        """Load a program, once.

        Raises OSError with the end of the verifier's log if the kernel refuses it.
        """
        return self._loading_of(program).result()

    def _loading_of(self, program: Program) -> Future[int]:
        if program not in self._loads:
            self._loads[program] = self._loading.submit(self._load, program)
        return self._loads[program]

    def _load(self, program: Program) -> int:
        descriptors = [self._maps[each.name] for each in self._compiled.maps]
        instructions = with_descriptors(self._compiled.functions[program.function], descriptors)
        fd = bpf.program_load(program.type, instructions, program.attach_type, program.function)
        check_stack(fd, instructions, program.function)
        return fd

    def _install_continuations(self) -> None:
        if self._walker is not WalkerKind.TAIL_CALLS:
            return
        for map_name, program in continuations_of(self._method).items():
            bpf.map_update(self._map_fd(map_name), bytes(4), bpf.u32(self._program_fd(program)))


def _refusal(error: OSError, deed: str) -> errors.KernelError | errors.AccessDenied:
    if not isinstance(error, PermissionError):
        return errors.KernelError(f"the kernel cannot {deed}: {error.strerror or error}")
    return errors.AccessDenied(
        f"the kernel refuses to {deed}: {error.strerror}",
        "run as root with CAP_SYS_ADMIN and CAP_SYS_PTRACE; `bpfleakctl doctor` shows the rest",
    )


def _compiled(
    flags: list[str], programs: tuple[Program, ...], cache: CompileCache
) -> tuple[CompiledPrograms, bool]:
    """The programs, from the cache or compiled and then cached; and whether they came from the cache."""
    source = flattened(bpf_directory())
    key = hashlib.blake2b("\0".join([*flags, source]).encode(), digest_size=16).hexdigest()
    known = cache.read(key)
    if known is not None:
        return known, False
    compiled = _compile(source, flags, programs)
    cache.write(key, compiled)
    return compiled, True


def _compile(source: str, flags: list[str], programs: tuple[Program, ...]) -> CompiledPrograms:
    try:
        import bcc
    except ImportError as error:
        raise errors.KernelUnsupported(
            f"the Python bindings of bcc are missing: {error}",
            "install the distribution's package (apt install python3-bpfcc) and use a venv made "
            "with --system-site-packages by /usr/bin/python3",
        ) from error
    os.environ["BCC_KERNEL_SOURCE"] = str(bpf_directory() / "shim")
    try:
        module = bcc.BPF(text=source, cflags=flags)
    except Exception as error:
        # bcc raises bare Exceptions; its output is in the child's last lines.
        if os.geteuid() != 0:
            raise errors.AccessDenied("loading BPF programs needs root", "run the daemon as root") from error
        raise errors.KernelError(f"the BPF programs do not compile: {error}") from error
    map_fds = map_descriptors(bcc.lib, module.module)
    templates = {name: template for name, template in _MAP_OF_MAPS.findall(source) if name in map_fds}
    functions = {program.function: module.dump_func(program.function.encode()) for program in programs}
    compiled = CompiledPrograms.of_maps(map_fds, templates, functions)
    module.cleanup()
    return compiled


def _pid_namespace_flags() -> list[str]:
    """In a container the programs must use the pids of its namespace."""
    if pid_namespace.is_initial():
        return []
    namespace = pid_namespace.own()
    return [f"-DPID_NAMESPACE_DEVICE={namespace.st_dev}", f"-DPID_NAMESPACE_INODE={namespace.st_ino}"]


if __name__ == "__main__":
    serve(main, _prepare)
