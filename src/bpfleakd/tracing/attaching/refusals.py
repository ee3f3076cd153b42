"""The reasons for not attaching to a process, as errors and in the log."""

from __future__ import annotations

import errno
from collections.abc import Sequence

import structlog

from bpfleakd import errors
from bpfleakd.elf.image import EM_X86_64, ElfImage
from bpfleakd.process.allocators import ALLOCATORS
from bpfleakd.process.files.mapped_files import open_program
from bpfleakd.process.process import ProcessInfo
from bpfleakd.tracing.attaching.probed_file import ProbedFile
from bpfleakd.tracing.attaching.process_code import ProcessCode

__all__ = ["link_error", "log_refused", "no_allocator"]

log = structlog.get_logger()


def log_refused(pid: int, files: Sequence[ProbedFile]) -> None:
    """Log the probe points of files that could not be verified."""
    for file in files:
        if file.refused:
            log.warning("probes.refused", pid=pid, count=len(file.refused), reasons=file.refused[:4])


def no_allocator(process: ProcessInfo, files: Sequence[ProbedFile], code: ProcessCode) -> errors.TargetError:
    """Why a process has nothing to probe; `files` are the searched ones."""
    return _unverified(process, files) or _unknown_allocator(process, code)


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
        program = open_program(pid, code.mappings, code.owner)
        if program is None:
            raise errors.BadElf("its program is not mapped")
        with ElfImage.open(program.descriptor) as image:
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
