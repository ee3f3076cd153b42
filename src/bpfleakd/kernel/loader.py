"""Compile, load, try and pin the programs: the only home of bcc.

bcc brings LLVM, some 100 MB that the daemon has no use for afterwards, so this module runs as a child
(`python -m bpfleakd.kernel.loader`) that pins what it made under bpffs and ends. `load` is the daemon's
side of it.

The methods to attach are tried from the best to the oldest, unless one was asked for; the first that
records rightly (kernel/trial.py) is taken.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bpfleakd import errors
from bpfleakd.kernel import bpf
from bpfleakd.kernel.child import run_child, serve
from bpfleakd.kernel.links import Linker
from bpfleakd.kernel.maps import PINNED_MAPS, Maps
from bpfleakd.kernel.programs import LIFE_PROGRAMS, AttachMethod, Program, programs_of
from bpfleakd.kernel.source import bpf_directory, flattened
from bpfleakd.kernel.trial import try_linker

__all__ = ["Capacities", "Loaded", "available_methods", "load", "unpin"]

# inode of the initial pid namespace: PROC_PID_INIT_INO of include/linux/proc_ns.h
_INITIAL_PID_NAMESPACE = 0xEFFFFFFC


@dataclass(frozen=True, slots=True)
class Capacities:
    """Maximum entries of the maps."""

    processes: int
    sites: int
    stacks: int
    threads: int
    unwind_rules: int = 16_384
    unwind_shards: int = 256


@dataclass(frozen=True, slots=True)
class Loaded:
    """What is pinned: how to attach, and what each method that was passed over lacked."""

    method: AttachMethod
    passed_over: dict[str, str]


def load(directory: Path, capacities: Capacities, method: AttachMethod | None) -> Loaded:
    """Compile, load and pin under `directory` (made, and emptied of what was pinned there before).

    `method` None takes the best that works. Raises KernelUnsupported if none does, AccessDenied
    without the privileges, KernelError for the rest.
    """
    wanted = [method] if method else list(AttachMethod)
    reply = run_child(
        __spec__.name,
        {"directory": str(directory), "capacities": asdict(capacities), "methods": [m.value for m in wanted]},
    )
    return Loaded(AttachMethod(reply["method"]), reply["passed_over"])


def available_methods() -> tuple[AttachMethod, ...]:
    """The methods that work on this machine, best first; nothing is pinned."""
    reply = run_child(__spec__.name, {"directory": None, "capacities": asdict(Capacities(8, 64, 64, 64))})
    return tuple(AttachMethod(name) for name in reply["methods"])


def unpin(directory: Path) -> None:
    """Remove our pins below `directory`; objects that nothing else holds go with them."""
    if not directory.is_dir():
        return
    for pin in directory.iterdir():
        pin.unlink()
    directory.rmdir()


# The child's side


def main(request: dict[str, Any]) -> dict[str, Any]:
    """Load what the request names; with no directory only tell which methods work."""
    module = _Module(Capacities(**request["capacities"]))
    maps = Maps({name: os.dup(module.map_fd(name)) for name in PINNED_MAPS})
    if request["directory"] is None:
        return {"methods": [method for method in AttachMethod if _failure(module, maps, method) is None]}

    passed_over: dict[str, str] = {}
    for name in request["methods"]:
        method = AttachMethod(name)
        failure = _failure(module, maps, method)
        if failure is None:
            _pin(module, Path(request["directory"]), method)
            return {"method": method, "passed_over": passed_over}
        passed_over[name] = failure
    raise errors.KernelUnsupported(
        "this kernel has no way to attach uprobes that works: "
        + "; ".join(f"{name}: {reason}" for name, reason in passed_over.items()),
        "`bpfleakctl doctor` shows what is missing; attach_method: auto tries every way",
    )


class _Module:
    """A compiled module: its maps exist, its programs are loaded when they are asked for."""

    def __init__(self, capacities: Capacities) -> None:
        try:
            import bcc
        except ImportError as error:
            raise errors.KernelUnsupported(
                f"the Python bindings of bcc are missing: {error}",
                "install the distribution's package (apt install python3-bpfcc) and use a venv made "
                "with --system-site-packages by /usr/bin/python3",
            ) from error
        directory = bpf_directory()
        flags = [f"-DMAX_{name.upper()}={value}" for name, value in asdict(capacities).items()]
        os.environ["BCC_KERNEL_SOURCE"] = str(directory / "shim")
        try:
            self._bcc = bcc.BPF(text=flattened(directory), cflags=flags + _pid_namespace_flags())
        except Exception as error:
            # bcc raises bare Exceptions; what it printed before is in the child's last words.
            if os.geteuid() != 0:
                raise errors.AccessDenied(
                    "loading BPF programs needs root", "run the daemon as root"
                ) from error
            raise errors.KernelError(f"the BPF programs do not compile: {error}") from error
        self._program_fds: dict[Program, int] = {}

    def map_fd(self, name: str) -> int:
        return self._bcc[name.encode()].map_fd

    def program_fd(self, program: Program) -> int:
        """Load a program, once. OSError with the verifier's last words if the kernel refuses it."""
        if program not in self._program_fds:
            instructions = self._bcc.dump_func(program.function.encode())
            self._program_fds[program] = bpf.program_load(
                program.type, instructions, program.attach_type, program.function
            )
        return self._program_fds[program]


def _pid_namespace_flags() -> list[str]:
    """In a container the programs must ask for pids as this namespace numbers them."""
    namespace = os.stat("/proc/self/ns/pid")
    if namespace.st_ino == _INITIAL_PID_NAMESPACE:
        return []
    return [f"-DPID_NAMESPACE_DEVICE={namespace.st_dev}", f"-DPID_NAMESPACE_INODE={namespace.st_ino}"]


def _failure(module: _Module, maps: Maps, method: AttachMethod) -> str | None:
    """Why a method does not work here; None if it does."""
    try:
        fds = {program.function: module.program_fd(program) for program in programs_of(method)}
        try_linker(Linker(method, fds), maps)
    except PermissionError as error:
        raise errors.AccessDenied(
            f"the kernel refuses to load or attach BPF programs: {error.strerror}",
            "run as root with CAP_SYS_ADMIN and CAP_SYS_PTRACE; `bpfleakctl doctor` shows the rest",
        ) from error
    except OSError as error:
        return error.strerror or str(error)
    return None


def _pin(module: _Module, directory: Path, method: AttachMethod) -> None:
    unpin(directory)
    try:
        directory.mkdir(parents=True)
        for name in PINNED_MAPS:
            bpf.object_pin(module.map_fd(name), directory / name)
        for program in (*programs_of(method), *LIFE_PROGRAMS):
            bpf.object_pin(module.program_fd(program), directory / program.function)
    except OSError as error:
        shutil.rmtree(directory, ignore_errors=True)
        raise errors.KernelError(
            f"cannot pin under {directory}: {error.strerror}",
            "bpffs must be mounted there: mount -t bpf bpf /sys/fs/bpf",
        ) from error


if __name__ == "__main__":
    serve(main)
