"""Real processes that are held still, and go on afterwards."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from bpfleakd import errors
from bpfleakd.process.stopper import hold, tracer_of

# Three threads that count in a file of shared memory which the test reads.
_COUNTS = """
import mmap, sys, threading, time
file = open(sys.argv[1], "r+b")
counters = mmap.mmap(file.fileno(), 4096)
def count(at):
    number = 0
    while True:
        number += 1
        counters[at : at + 8] = number.to_bytes(8, "little")
        time.sleep(0.001)
for at in (8, 16):
    threading.Thread(target=count, args=(at,), daemon=True).start()
print("ready", flush=True)
count(0)
"""


@pytest.fixture
def counting(tmp_path):
    """(process, a function that returns its counters)."""
    path = tmp_path / "counters"
    path.write_bytes(bytes(4096))
    with subprocess.Popen([sys.executable, "-c", _COUNTS, path], stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        yield process, lambda: np.frombuffer(path.read_bytes(), np.uint64)[:3].tolist()
        process.kill()


def wait_for_progress(counters) -> None:
    """All three threads go on."""
    before, deadline = counters(), time.monotonic() + 10
    while any(now <= then for now, then in zip(counters(), before, strict=True)):
        assert time.monotonic() < deadline, "a thread stands still"
        time.sleep(0.005)


def test_all_threads_stand_still_and_go_on(counting) -> None:
    """Nothing is counted while they are held, and everything afterwards."""
    process, counters = counting
    held = hold(process.pid, 10.0)
    try:
        assert held.is_holding
        before = counters()
        time.sleep(0.05)
        assert counters() == before
        assert len(held.registers) == 3
        assert len({registers.stack_pointer for registers in held.registers}) == 3
        assert all(registers.thread_pointer > 4096 for registers in held.registers)
    finally:
        held.let_go()
    assert not held.is_holding
    assert held.stopped_s >= 0.05
    wait_for_progress(counters)


def test_the_time_is_over(counting) -> None:
    """They continue by themselves, whatever the stopping process does."""
    process, counters = counting
    held = hold(process.pid, 0.1)
    wait_for_progress(counters)
    assert not held.is_holding
    held.let_go()
    assert 0.1 <= held.stopped_s < 5


def test_a_signal_that_comes_meanwhile_arrives(counting) -> None:
    """Held back, and delivered afterwards."""
    process, _counters = counting
    held = hold(process.pid, 10.0)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.05)
    assert process.poll() is None
    held.let_go()
    assert process.wait(10) == -signal.SIGTERM


def test_a_process_that_stands_still_already(counting) -> None:
    """Stopped by a signal: it stays so, until SIGCONT."""
    process, counters = counting
    process.send_signal(signal.SIGSTOP)
    held = hold(process.pid, 10.0)
    held.let_go()
    before = counters()
    time.sleep(0.05)
    assert counters() == before
    process.send_signal(signal.SIGCONT)
    wait_for_progress(counters)


def test_killed_while_it_is_held(counting) -> None:
    """It ends, and its parent learns of it as soon as it is released."""
    process, _counters = counting
    held = hold(process.pid, 10.0)
    process.kill()
    time.sleep(0.05)
    held.let_go()
    assert process.wait(10) == -signal.SIGKILL


def test_ended_before() -> None:
    """There is no process to stop."""
    process = subprocess.Popen(["true"])
    process.wait()
    with pytest.raises(errors.NoSuchProcess):
        hold(process.pid, 1.0)


def test_another_one_holds_it(counting) -> None:
    """A process can have only one tracer, and the message names it; the process is unchanged."""
    process, counters = counting
    script = (
        "import sys, time; from bpfleakd.process.stopper import hold; held = hold(int(sys.argv[1]), 60.0);"
        "print('holding', flush=True); sys.stdin.read(); held.release()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", script, str(process.pid)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert other.stdout
        other.stdout.readline()
        assert tracer_of(process.pid) == other.pid
        with pytest.raises(errors.TargetRefused, match=f"by python.* \\(process {other.pid}\\)") as refused:
            hold(process.pid, 1.0)
        assert "--no-stop" in refused.value.hint
    finally:
        # However it ends: the kernel releases the process.
        other.kill()
        other.communicate()
    wait_for_progress(counters)
    assert tracer_of(process.pid) == 0


def test_registers_hold_what_the_program_put_there(tmp_path) -> None:
    """General and vector registers of a thread, word by word."""
    source = tmp_path / "registers.c"
    source.write_text(
        "#include <unistd.h>\n"
        'int main(void) { write(1, "ready\\n", 6); __asm__ volatile('
        '"mov $0x2323232323232323, %%r12; movq %%r12, %%xmm5; not %%r12; mov $34, %%eax; syscall"'
        '::: "r12", "xmm5", "rax", "rcx", "r11"); return 0; }\n'
    )
    program = tmp_path / "registers"
    subprocess.run(["gcc", "-o", program, source], check=True)
    process = subprocess.Popen([program], stdout=subprocess.PIPE)
    try:
        assert process.stdout
        process.stdout.readline()
        deadline = time.monotonic() + 10
        words: set[int] = set()
        while not {0x2323232323232323, 0xDCDCDCDCDCDCDCDC} <= words:
            assert time.monotonic() < deadline
            held = hold(process.pid, 10.0)
            held.let_go()
            words = set(held.registers[0].words.tolist())
    finally:
        process.kill()
        process.communicate()
