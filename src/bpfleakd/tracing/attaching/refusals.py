"""Every reason not to attach to a process, in the order in which an attach meets them."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Sequence

import structlog

from bpfleakd import errors
from bpfleakd.elf.image import EM_X86_64, ElfImage
from bpfleakd.kernel.pins import PinnedSet
from bpfleakd.model.code.mapping import Mapping
from bpfleakd.model.process import ProcessId
from bpfleakd.process.allocators import ALLOCATORS
from bpfleakd.process.breakpoints import changed_code
from bpfleakd.process.files.process_code import ProcessCode
from bpfleakd.process.process import HeldProcess, ProcessInfo, is_hosts_init
from bpfleakd.tracing.attaching.probed_file import ProbedFile

log = structlog.get_logger()

# uretprobes kill a process under seccomp, strict or with a filter: CVE-2025-21834, from Linux 6.11 on, fixed
# in 6.12.14 and 6.13.3. First fixed release of each affected series; None: never fixed in that series.
_SECCOMP_KILLS: dict[tuple[int, int], int | None] = {(6, 11): None, (6, 12): 14, (6, 13): 3}


def unmounted(pins: PinnedSet) -> errors.KernelError | None:
    """What to say where the pins' file system is gone; None if it is there."""
    if pins.is_mounted:
        return None
    return errors.KernelError(
        f"{pins.directory} is gone: the bpf file system was unmounted, or the pins were removed",
        "mount it (mount -t bpf bpf /sys/fs/bpf), and restart the daemon: systemctl restart bpfleakd",
    )


def refuse(process: ProcessInfo, expected: ProcessId | None) -> None:
    """Raise NoSuchProcess if it is not the one `expected`, TargetRefused if it must not be traced."""
    pid = process.id.pid
    if expected is not None and process.id != expected:
        raise errors.NoSuchProcess(f"process {pid} has exited and its PID was reused")
    check_traceable(process, os.getpid(), os.uname().release, is_init=is_hosts_init(pid))


def check_traceable(
    process: ProcessInfo, own_pid: int, kernel_release: str, *, is_init: bool = False
) -> None:
    """Raise TargetRefused if the process must not be traced, with the reason."""
    pid = process.id.pid
    if is_init:
        raise errors.TargetRefused(
            f"process {pid} ({process.comm}) is init", "a fault in init would panic the kernel"
        )
    if pid == own_pid:
        raise errors.TargetRefused(
            f"process {pid} is bpfleakd itself", "the daemon must not record its own malloc"
        )
    if process.kernel_thread:
        raise errors.TargetRefused(
            f"process {pid} ({process.comm}) is a kernel thread", "it has no user-space memory to leak"
        )
    if process.state in "ZX" and process.threads > 1:
        raise errors.TargetRefused(
            f"the main thread of process {pid} ({process.comm}) has ended before the others",
            "its mappings can only be read through its main thread: attach earlier",
        )
    if process.state in "ZX":
        raise errors.TargetRefused(
            f"process {pid} ({process.comm}) is a zombie",
            "its memory is already free; its parent has not reaped it yet",
        )
    if process.seccomp_filtered and seccomp_kills(kernel_release):
        raise errors.TargetRefused(
            f"process {pid} ({process.comm}) runs under seccomp, and return probes kill such a "
            f"process on Linux {kernel_release} (CVE-2025-21834)",
            "update the kernel to 6.12.14, 6.13.3 or later",
        )


def seccomp_kills(kernel_release: str) -> bool:
    """Whether return probes kill a process under seccomp on this kernel."""
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", kernel_release)
    if not match:
        return False
    major, minor, patch = (int(number or 0) for number in match.groups())
    if (major, minor) not in _SECCOMP_KILLS:
        return False
    fixed_in = _SECCOMP_KILLS[major, minor]
    return fixed_in is None or patch < fixed_in


def refuse_if_ended(process: HeldProcess) -> None:
    """Raise NoSuchProcess if what was read in the meantime is of a process that has ended."""
    if process.has_ended():
        raise errors.NoSuchProcess(f"process {process.info.id.pid} has ended meanwhile")


def refuse_changed_code(code: ProcessCode, files: Iterable[ProbedFile]) -> None:
    """Raise TargetRefused if the process has changed instructions that would be probed."""
    for file in files:
        mappings = [mapping for mapping in code.mappings if _is_of(code, mapping, file)]
        changed = changed_code(code.pid, file.file.descriptor, file.probed_code, mappings)
        if changed:
            names = {probe.offset: probe.function for probe in file.functions}
            raise errors.TargetRefused(
                f"{names.get(changed[0], 'a probe')} in {file.shown_path} was changed in memory, in process "
                f"{code.pid}: a breakpoint there could end it",
                "start it without what replaces its functions: hooks (Frida), live patches",
            )


def has_changed_code(code: ProcessCode, files: Iterable[ProbedFile]) -> bool:
    """Whether the process has changed instructions that would be probed."""
    try:
        refuse_changed_code(code, files)
    except errors.TargetRefused:
        return True
    return False


def _is_of(code: ProcessCode, mapping: Mapping, file: ProbedFile) -> bool:
    mapped = code.file_of(mapping)
    return mapped is not None and mapped.file.key == file.id


def log_refused(pid: int, files: Sequence[ProbedFile]) -> None:
    """Log the probe points of files that could not be verified."""
    for file in files:
        if file.refused:
            log.warning("probes.refused", pid=pid, count=len(file.refused), reasons=file.refused[:4])


def refuse_without_allocator(
    process: ProcessInfo,
    code: ProcessCode,
    found: Sequence[ProbedFile],
    chosen: Sequence[ProbedFile],
    *,
    is_needed: bool,
) -> None:
    """Raise TargetError if nothing that allocates was `chosen` of what was `found`.

    None `is_needed` where the process has another heap that is known.
    """
    if is_needed and not any(file.has_allocator or file.sampled for file in chosen):
        raise _unverified(process, found) or _unknown_allocator(process, code)


def _unverified(process: ProcessInfo, files: Sequence[ProbedFile]) -> errors.NoAllocator | None:
    """The reason if there were symbols that the program's own file did not confirm."""
    refused = [reason for file in files for reason in file.refused]
    if not refused:
        return None
    return errors.NoAllocator(
        f"process {process.id.pid} ({process.comm}) has no allocator that can be probed safely: {refused[0]}",
        "check that its debug file belongs to this build",
    )


def _unknown_allocator(process: ProcessInfo, code: ProcessCode) -> errors.TargetError:
    pid = process.id.pid
    try:
        if code.program is None:
            raise errors.BadElf("its program is not mapped")
        with ElfImage.open(code.program.file.descriptor) as image:
            machine, is_bare = image.machine, image.is_static and image.section(".symtab") is None
    except errors.BadElf:
        machine, is_bare = EM_X86_64, False
    except OSError:
        return errors.NoSuchProcess(f"process {pid} ended during the attach")
    if machine != EM_X86_64:
        return errors.BadElf(
            f"process {pid} ({process.comm}) is for machine {machine}, not x86-64",
            "32-bit programs cannot be traced",
        )
    if is_bare:
        return errors.NoAllocator(
            f"process {pid} ({process.comm}) is a statically linked program without symbols: its "
            "allocator cannot be located",
            "install its debug symbols (a separate debug file is enough), or do not strip it",
        )
    known = ", ".join(dict.fromkeys(allocator.name for allocator in ALLOCATORS))
    return errors.NoAllocator(
        f"no known allocator is mapped in process {pid} ({process.comm}) (known: {known})",
        "to support another allocator, add its functions to process/allocators.py",
    )


def link_error(pid: int, error: OSError) -> errors.BpfleakdError:
    """Why the kernel did not link the probes."""
    if error.errno in (errno.ESRCH, errno.ENOENT):
        return errors.NoSuchProcess(f"process {pid} ended during the attach")
    if error.errno in (errno.EPERM, errno.EACCES):
        return errors.AccessDenied(
            f"the kernel refuses probes in process {pid}: {error.strerror}",
            "the daemon needs CAP_SYS_ADMIN and CAP_SYS_PTRACE; `bpfleakctl doctor` lists its capabilities",
        )
    hint = ""
    if error.errno == errno.EINVAL:
        # bcc 0.26 passes an uninitialised offset of a reference counter, and the kernel requires the same one
        # from all users of an address (dmesg: "ref_ctr_offset mismatch").
        hint = (
            "check whether another tracer probes the same functions: older bcc tools (memleak) exclude others"
        )
    return errors.KernelError(f"probes in process {pid} failed: {error.strerror or error}", hint)
