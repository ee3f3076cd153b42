"""Hours in short: processes that come and go, one that is attached to again and again, killed daemons.

SOAK_S, CYCLES and KILLS change how long each is.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from bpfleakd.api.client import DaemonClient

from ..kernel.daemons import Daemon
from ..kernel.machine import need_tool
from ..kernel.truth import expect_ledger, expect_no_losses
from ..kernel.waiting import wait_until
from ..kernel.workloads import Workload
from .test_own_memory import MIB, descriptors, resident_bytes

SOAK_S = float(os.environ.get("SOAK_S", "1200"))
CYCLES = int(os.environ.get("CYCLES", "2000"))
KILLS = int(os.environ.get("KILLS", "40"))

STARTS_PER_S = 60
# Until then caches fill; from then on nothing grows.
WARM_UP_SHARE = 0.25
GROWTH_MAX_BYTES = 8 * MIB
DESCRIPTORS_MAX = 16
# Files of ended processes stay open until enough others were read (symbols/module_cache.py).
MODULES_MAX = 64
# For the processes that last for two seconds.
ATTACHED_MIN = 0.9


def compiled(name: str, directory: Path, *options: str) -> Path:
    """A program of this directory."""
    need_tool("gcc")
    source = Path(__file__).with_name(f"{name}.c")
    subprocess.run(["gcc", "-O1", "-g", *options, "-o", directory / name, source], check=True, timeout=60)
    return directory / name


def test_killed_at_any_moment_nothing_is_lost(
    daemon: Callable[..., Daemon], workload: Callable[..., Workload], dice: random.Random
):
    """Every daemon ends by SIGKILL, also while it starts or attaches; the figures stay exact."""
    tracer = daemon()
    program = workload("every_function", 2)
    tracer.attach(program.pid)
    for _ in range(KILLS):
        program.step()
        tracer.kill()
        program.step()
        tracer.launch()
        if dice.random() < 0.3:
            time.sleep(dice.uniform(0, 0.5))
            tracer.kill()
            tracer.launch()
        wait_until(tracer._answers, 60)
    ledger = program.step()
    report = tracer.top_after_tick(program.pid)
    expect_ledger(report, ledger)
    expect_no_losses(report)
    row = tracer.process(program.pid)
    print(f"{KILLS} kills, adopted {row['adopted_count']} times, {row['gap_s']:.1f} s without a daemon")


def test_thousands_of_attaches_to_a_busy_process(daemon: Callable[..., Daemon], tmp_path: Path):
    """Threads, children, longjmp out of handlers on another stack, dlclose: it does not notice any of it."""
    program = compiled("lively", tmp_path, "-pthread")
    tracer = daemon()
    client = DaemonClient(tracer.socket)
    lively = subprocess.Popen([program], stdout=subprocess.PIPE, text=True)
    assert lively.stdout is not None
    try:
        assert lively.stdout.readline() == "ready\n"
        began_s = time.monotonic()
        warm_bytes = warm_descriptors = 0
        for cycle in range(CYCLES):
            client.attach(lively.pid)
            if cycle % 10 == 0:
                client.report(lively.pid, limit=5)
            client.detach(lively.pid)
            assert lively.poll() is None, f"it ended with {lively.returncode} in cycle {cycle}"
            if cycle == CYCLES // 10:
                warm_bytes, warm_descriptors = resident_bytes(tracer.pid), descriptors(tracer.pid)
        took_s = time.monotonic() - began_s
        lively.send_signal(signal.SIGTERM)
        told, _ = lively.communicate(timeout=60)
    finally:
        lively.kill()
        lively.wait()
    grown_bytes = resident_bytes(tracer.pid) - warm_bytes
    print(
        f"{CYCLES} cycles in {took_s:.0f} s, {took_s / CYCLES * 1e3:.0f} ms each; its rounds: {told}; "
        f"daemon {warm_bytes / MIB:.1f} MiB and {grown_bytes / MIB:+.1f}"
    )
    assert lively.returncode == 7
    assert min(int(rounds) for rounds in told.split()) > 0
    assert grown_bytes < GROWTH_MAX_BYTES
    wait_until(lambda: descriptors(tracer.pid) <= warm_descriptors + DESCRIPTORS_MAX)


def test_processes_that_come_and_go(
    daemon: Callable[..., Daemon], workload: Callable[..., Workload], dice: random.Random, tmp_path: Path
):
    """Sixty a second, for twenty minutes: those that last are attached to, and a long one stays exact.

    Neither memory nor descriptors grow.
    """
    program = compiled("brief", tmp_path)
    rule = {"match": {"exe": str(program)}, "mode": "exact"}
    tracer = daemon(policy={"default": "off", "rules": [rule]}, tick_s=1.0)
    client = DaemonClient(tracer.socket)
    beside = workload("every_function", 2)
    tracer.attach(beside.pid)
    running: list[subprocess.Popen[bytes]] = []
    sizes: list[tuple[float, int, int]] = []
    began_s = time.monotonic()
    started = 0
    lasting: set[int] = set()
    while (now_s := time.monotonic() - began_s) < SOAK_S:
        while started < now_s * STARTS_PER_S:
            life_ms = 2000 + dice.randrange(2000) if dice.random() < 0.2 else 50 + dice.randrange(300)
            running.append(subprocess.Popen([program, str(life_ms)]))
            started += 1
            if life_ms >= 2000:
                lasting.add(running[-1].pid)
        running = [process for process in running if process.poll() is None]
        sizes.append((now_s, resident_bytes(tracer.pid), descriptors(tracer.pid)))
        time.sleep(0.05)
    for process in running:
        process.wait(timeout=60)
    attached = {event["pid"] for event in tracer.events("process.attached")} - {beside.pid}
    share = len(lasting & attached) / len(lasting)
    missed = sum(client.stats().process_events.missed_total.values())
    ledger = beside.step()
    expect_ledger(tracer.top_after_tick(beside.pid), ledger)
    warm = [size for size in sizes if size[0] > SOAK_S * WARM_UP_SHARE]
    half = len(warm) // 2
    grown_bytes = max(size[1] for size in warm[half:]) - max(size[1] for size in warm[:half])
    print(
        f"{started} processes in {SOAK_S:.0f} s, {len(lasting)} of 2 s and more; attached to "
        f"{len(attached)}, {100 * share:.1f} % of those; daemon {warm[0][1] / MIB:.1f} MiB and "
        f"{grown_bytes / MIB:+.1f}, at most {max(size[2] for size in sizes)} descriptors; "
        f"{client.stats().process_events}"
    )
    assert share >= ATTACHED_MIN
    assert len(lasting - attached) <= missed
    assert grown_bytes < GROWTH_MAX_BYTES
    assert warm[-1][2] <= warm[0][2] + DESCRIPTORS_MAX * 10
    wait_until(lambda: descriptors(tracer.pid) <= sizes[0][2] + MODULES_MAX + DESCRIPTORS_MAX, 30)
