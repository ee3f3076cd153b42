"""Suppressed sites of a real program: in no list, in the totals, and by pattern."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from .waiting import wait_until


def test_a_leak_that_is_suppressed(daemon, workload, tmp_path: Path):
    """It is counted, the rest is shown, and the process is none that leaks; a reload ends that."""
    # given a program that leaks in one function, which a file of suppressions names
    known = tmp_path / "known.supp"
    known.write_text("leak:^never_freed$\n")
    program = workload("growing", "leak")
    tracer = daemon(suppressions=[str(known)])
    tracer.attach(program.pid)

    # when it has leaked for a while
    program.step(200)

    # then it is in no list, and its totals are stated
    shown = json.loads(tracer.control("top", "--pid", program.pid, "--json", "--limit", 0))
    whole = tracer.top(program.pid)
    (leak,) = [site for site in whole["sites"] if site["function"] == "never_freed"]
    assert leak["live_count"] == 200
    assert "never_freed" not in {site["function"] for site in shown["sites"]}
    assert shown["suppressed"]["^never_freed$"] == {
        "sites": 1,
        "live_bytes": leak["live_bytes"],
        "live_count": 200,
    }
    assert shown["process"]["live_bytes"] == whole["process"]["live_bytes"]
    assert shown["process_verdict"]["verdict"] != "leak"
    listed = json.loads(tracer.control("report", "--pid", program.pid, "--json"))
    assert leak["site"] not in {site["site"] for site in listed["sites"]}
    assert "suppressed: leak:^never_freed$" in tracer.control("top", "--pid", program.pid, "--once")
    assert tracer.events("site.leak") == []

    # and the file is read again at a reload
    known.write_text("")
    os.kill(tracer.pid, signal.SIGHUP)
    wait_until(
        lambda: (
            "never_freed" in tracer.control("top", "--pid", program.pid, "--once")
            and "suppressed: leak:^never_freed$" not in tracer.control("top", "--pid", program.pid, "--once")
        )
    )


# Each of them makes the C library or the loader keep something.
_CALLS = """
import ctypes, locale, pwd, sys, threading, time
print("ready", flush=True)
sys.stdin.readline()
try:
    ctypes.CDLL("there-is-no-such-library.so")
except OSError:
    pass
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
locale.setlocale(locale.LC_ALL, "C.UTF-8")
time.tzset()
pwd.getpwnam("root")
print("done", flush=True)
sys.stdin.readline()
"""


def test_what_the_c_library_keeps(daemon):
    """A program without leaks: no list has the blocks that the C library and the loader keep."""
    program = subprocess.Popen(
        [sys.executable, "-c", _CALLS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert program.stdout.readline() == "ready\n"
        tracer = daemon()
        tracer.attach(program.pid)
        program.stdin.write("\n")
        program.stdin.flush()
        assert program.stdout.readline() == "done\n"

        scanned = json.loads(tracer.control("scan", "--pid", program.pid, "--older-than", "0", "--json"))
        shown = json.loads(tracer.control("top", "--pid", program.pid, "--json", "--limit", 0))
    finally:
        program.kill()
        program.communicate()

    assert scanned["sites"] == []
    # These two are exported, so that they have their names everywhere.
    kept = shown["suppressed"]
    assert kept["^_dl_allocate_tls$"]["live_count"] == 1
    assert "^dlerror$" in kept
    heap = [site for site in shown["sites"] if site["kind"] == "heap"]
    functions = {frame["function"] for site in heap for frame in site["stack"]}
    assert not functions & {pattern.strip("^$") for pattern in kept}
