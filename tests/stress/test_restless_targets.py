"""Targets that exit, exec and fork during every step of attach and detach."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

from bpfleakd import errors
from bpfleakd.api.client import DaemonClient

from ..kernel.daemons import Daemon
from ..kernel.kernel_objects import objects_held_by
from ..kernel.waiting import wait_until

ROUNDS = 300
AT_ONCE = 4
BUDGET_S = 100.0
# An attach takes some tenths of a second: the moments lie before, in and after it.
LATEST_S = 0.6

ENDS = {"exit": 7, "kill": -signal.SIGKILL, "exec": 7, "fork": 7, "vfork": 7}


def one_round(client: DaemonClient, restless: Path, dice: random.Random) -> str | None:
    """Attach, and maybe detach, while the program runs; returns what went wrong, if anything."""
    what = dice.choice(list(ENDS))
    delay_s = dice.uniform(0, LATEST_S) if dice.random() < 0.8 else 0.0
    program = subprocess.Popen([restless, what, str(int(delay_s * 1e6))])
    try:
        time.sleep(dice.uniform(0, 0.05))
        with contextlib.suppress(errors.TargetError):  # it has ended, or is about to
            client.attach(program.pid)
            time.sleep(dice.uniform(0, LATEST_S))
            if dice.random() < 0.5:
                client.report(program.pid)
            if dice.random() < 0.7:
                client.detach(program.pid)
        exit_code = program.wait(timeout=60)
    except (errors.BpfleakdError, subprocess.TimeoutExpired) as error:
        return f"{what} after {delay_s:.3f} s: {type(error).__name__}: {error}"
    finally:
        program.kill()
        program.wait()
    if exit_code != ENDS[what]:
        return f"{what} after {delay_s:.3f} s: ended with {exit_code}, not {ENDS[what]}"
    return None


def test_nothing_breaks_and_nobody_is_harmed(
    daemon: Callable[..., Daemon], restless: Path, dice: random.Random
):
    """Every program ends as it would have untraced, no error but "it has ended", nothing stays attached."""
    traced_by = daemon()
    client = DaemonClient(traced_by.socket)
    before = objects_held_by(traced_by.pid)
    wrong: list[str] = []
    done = 0
    deadline = time.monotonic() + BUDGET_S
    lock = threading.Lock()

    def rounds(own_dice: random.Random) -> None:
        nonlocal done
        while time.monotonic() < deadline:
            with lock:
                if done >= ROUNDS:
                    return
                done += 1
            failure = one_round(client, restless, own_dice)
            if failure:
                wrong.append(failure)

    threads = [threading.Thread(target=rounds, args=[random.Random(dice.random())]) for _ in range(AT_ONCE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"{done} rounds")
    assert wrong == []
    wait_until(lambda: not [row for row in traced_by.ps() if row["process"]["state"] == "traced"], 30)
    for event in ("tick.failed", "api.failed", "Traceback"):
        assert event not in traced_by.log, traced_by.log
    links = wait_until(lambda: len(objects_held_by(traced_by.pid).ids["link"]) <= len(before.ids["link"]), 30)
    assert links
    assert done >= ROUNDS / 10
