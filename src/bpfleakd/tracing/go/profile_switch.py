"""Turns the heap profile of a Go program on, and off again.

Go's linker sets MemProfileRate to 0 in a program that imports no pprof package. Writing the default value
there turns the profile on. bpfleakd writes nothing else into a traced process, and this only at a user's
request.

Rules:
  - The old value is first stored with the process' pins, so the next daemon, or `--cleanup`, can restore it.
  - Before each write bpfleakd checks that the process is the same program, and that the variable is in the
    same place and has the expected value. A value that the program itself has changed is left alone.
"""

from __future__ import annotations

import structlog
from msgspec import Struct

from bpfleakd import errors
from bpfleakd.kernel.pins import ProcessPins
from bpfleakd.process.files.process_code import open_code
from bpfleakd.process.mappings import read_mappings
from bpfleakd.process.process import read_process
from bpfleakd.runtimes.go.memory import ProcessMemory
from bpfleakd.runtimes.go.program import find_go
from bpfleakd.tracing.checkpoint import read_checkpoint, write_checkpoint

log = structlog.get_logger()

# runtime.MemProfileRate's own default: one block in 512 KiB.
RATE_BYTES = 512 << 10
_RECORD = "go-profile"
_WORD_BYTES = 8


class _SwitchCheckpoint(Struct, frozen=True):
    """What was written where, and the value before."""

    address: int
    rate_before: int
    rate_written: int


def turn_on_profile(pins: ProcessPins) -> bool:
    """Turn on the profile of an attached process; False if it is on already.

    Raises TargetRefused for a program that Go did not make, NoSuchProcess, AccessDenied or KernelError.
    """
    pid = pins.id.pid
    address = _rate_address(pins)
    if address is None:
        raise errors.TargetRefused(f"process {pid} is not a Go program", "only those have such a profile")
    memory = ProcessMemory(pid, writable=True)
    try:
        before = memory.number(address)
        if before is None:
            raise errors.NoSuchProcess(f"process {pid} has ended")
        if before:
            return False
        record = pins.record(_RECORD)
        write_checkpoint(record, _SwitchCheckpoint(address, before, RATE_BYTES))
        record.close()
        _write(memory, address, RATE_BYTES, pid)
    except OSError as error:
        raise errors.KernelError(f"the profile of process {pid} was not turned on: {error}") from error
    finally:
        memory.close()
    log.warning("go.profile-turned-on", pid=pid, address=hex(address), rate_bytes=RATE_BYTES)
    return True


def turn_off_profile(pins: ProcessPins) -> None:
    """Restore the old value, if it was turned on here; failures are logged."""
    record, pid = pins.record(_RECORD), pins.id.pid
    try:
        kept = read_checkpoint(record, _SwitchCheckpoint)
    except (ValueError, OSError):
        return
    finally:
        record.close()
    try:
        if _rate_address(pins) != kept.address:
            return
        memory = ProcessMemory(pid, writable=True)
        try:
            if memory.number(kept.address) == kept.rate_written:
                _write(memory, kept.address, kept.rate_before, pid)
                log.info("go.profile-turned-off", pid=pid, rate_bytes=kept.rate_before)
        finally:
            memory.close()
    except errors.NoSuchProcess:
        return
    except errors.BpfleakdError as error:
        log.warning("go.profile-left-on", pid=pid, reason=error.message)
    finally:
        record.remove()


def _rate_address(pins: ProcessPins) -> int | None:
    """The current address of the process' MemProfileRate; None if it is not a Go program.

    Raises NoSuchProcess.
    """
    pid = pins.id.pid
    program = find_go(open_code(pid, read_mappings(pid))).program
    if read_process(pid).id != pins.id:
        if program is not None:
            program.close()
        raise errors.NoSuchProcess(f"process {pid} has ended, and its PID was reused")
    if program is None:
        return None
    address = program.rate_address
    program.close()
    return address


def _write(memory: ProcessMemory, address: int, value: int, pid: int) -> None:
    """Write a word and verify it."""
    if not memory.write(address, value.to_bytes(_WORD_BYTES, "little")) or memory.number(address) != value:
        raise errors.AccessDenied(
            f"the memory of process {pid} cannot be written to", "the daemon needs CAP_SYS_PTRACE"
        )
