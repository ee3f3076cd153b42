"""Daemons are killed, restarted, replaced: their tracing continues, and is adopted or cleanly removed."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from bpfleakd.api.client import DaemonClient
from bpfleakd.errors import DaemonUnreachable

from .daemons import ControlFailed, DaemonFailed
from .kernel_objects import changed_text
from .truth import by_function, expect_ledger, expect_no_losses
from .waiting import wait_until

ALREADY_RUNNING = 11
START, STOP = 1, 0


def _pins(tracer) -> list[Path]:
    return [path for path in tracer.bpffs_dir.rglob("*") if not path.is_dir()]


@pytest.mark.long
def test_killed_twenty_times_nothing_is_lost(daemon, workload):
    """Heap and mappings of a busy program are exact after SIGKILLs at any moment, also of the start."""
    program = workload("busy")
    tracer = daemon()
    tracer.attach_with_tables(program.pid)
    program.step(START)
    moments = random.Random(23)

    for number in range(20):
        tracer.kill(note=False)
        tracer.launch()
        if number % 4:
            adopted = tracer.log.count("kernel.adopted")
            wait_until(lambda before=adopted: tracer.log.count("kernel.adopted") > before)
        time.sleep(moments.uniform(0, 0.4))
    tracer.kill()
    tracer.start()
    ledger = program.step(STOP)

    report = tracer.top_after_tick(program.pid)
    expect_no_losses(report)
    expect_ledger(report, ledger)
    assert [site["truncated"] for site in report["sites"]] == [None] * len(report["sites"])
    row = tracer.process(program.pid)
    assert row["adopted_count"] >= 10
    assert row["gap_s"] > 0
    assert "Traceback" not in tracer.log


def test_a_stopping_daemon_reports_it(daemon, workload):
    """Requests meanwhile are answered, or refused with that reason; none finds half of the daemon gone."""
    tracer = daemon()
    for _ in range(3):
        tracer.attach(workload("busy").pid)
    asked_about = workload("busy").pid
    client = DaemonClient(tracer.socket)
    refusals = []

    os.kill(tracer.pid, signal.SIGTERM)
    while tracer.socket.exists():
        try:
            client.attach(asked_about)
            client.detach(asked_about)
        except DaemonUnreachable as refusal:
            refusals.append(refusal.message)

    assert any("stopping" in refusal for refusal in refusals), refusals
    tracer.wait_for_end()
    assert "Traceback" not in tracer.log


@pytest.mark.long
def test_a_leak_is_one_after_the_restart_as_well(daemon, workload):
    """Without another full observation period; the gap is reported."""
    program = workload("many_sites", 7)
    tracer = daemon(history={"leak_after_s": 10})
    tracer.attach(program.pid)

    def leaks(wanted=frozenset()) -> dict[str, str]:
        """The reasons of all leaks, once the expected ones are among them."""
        program.step(7 * 23)  # at each call site 23 blocks that stay
        sites = tracer.top_after_tick(program.pid)["sites"]
        found = {site["site"]: site["reason"] for site in sites if site["verdict"] == "leak"}
        return found if wanted <= found.keys() else {}

    before = wait_until(leaks, 60)
    # Histories are written every ten seconds. The leak continues: one that pauses is not a leak for a while.
    written = tracer.status()["ticks"] + math.ceil(11 / tracer.configuration["tick_s"])
    wait_until(lambda: leaks() and tracer.status()["ticks"] >= written, 60)
    tracer.kill()
    time.sleep(0.5)
    tracer.start()

    row = tracer.process(program.pid)
    after = wait_until(lambda: leaks(before.keys()), 30)
    assert row["process"]["growth_bytes_per_s"] > 0
    # A history that had started over would have no gap.
    assert all("not read for" in reason for reason in after.values()), after
    assert len(tracer.events("site.leak")) == len({event["site"] for event in tracer.events("site.leak")})


def test_a_program_that_ends_without_a_daemon_gets_its_last_report(daemon, workload):
    """By the next one, from the tables, with the functions' names."""
    program = workload("many_sites", 23)
    tracer = daemon()
    tracer.attach(program.pid)
    tracer.kill()
    ledger = program.step()
    program.exit()

    tracer.start()

    wait_until(lambda: tracer.process(program.pid)["process"]["state"] == "exited")  # when it has its names
    wait_until(lambda: None not in by_function(tracer.top(program.pid)))
    expect_ledger(tracer.top(program.pid), ledger)
    assert [path for path in _pins(tracer) if "traced" in path.parts] == []


@pytest.mark.long
def test_a_program_that_calls_exec_without_a_daemon(daemon, workload):
    """Its earlier allocations are reported; the program that now has the pid can be attached to."""
    program = workload("exec_fork", "exec")
    tracer = daemon()
    tracer.attach(program.pid)
    tracer.kill()
    program.start_step()
    program.wait_ready()

    tracer.start()

    assert tracer.process(program.pid)["process"]["state"] == "execed"
    assert "allocate_after" not in by_function(tracer.top(program.pid))
    assert changed_text(program.pid) == []
    tracer.attach(program.pid)
    ledger = program.step()
    expect_ledger(tracer.top_after_tick(program.pid), ledger)


def test_another_version_is_replaced(daemon, workload):
    """Its links and maps are removed, and its processes attached to again."""
    program = workload("many_sites", 23)
    tracer = daemon()
    tracer.attach(program.pid)
    program.step()
    before = set(_pins(tracer))
    tracer.kill()
    old = tracer.note_objects()

    tracer.configuration["limits"] = {"sites": 1009}
    tracer.start()

    assert not before & set(_pins(tracer))
    wait_until(lambda: not set(old.ids["link"]) & set(tracer.note_objects().ids["link"]))
    row = tracer.process(program.pid)
    assert (row["process"]["state"], row["process"]["live_count"]) == ("traced", 0)
    assert row["adopted_count"] == 0


def test_an_unreadable_record_starts_over(daemon, workload):
    """A record that is missing, a link that is half made: the process is attached to again, once."""
    program, whole = workload("many_sites", 23), workload("many_sites", 7)
    tracer = daemon()
    tracer.attach(program.pid)
    tracer.attach(whole.pid)
    before = program.step()
    ledger = whole.step()
    tracer.kill()
    (record,) = tracer.bpffs_dir.glob(f"set-*/traced/{program.pid}-*/attachment")
    record.unlink()
    (links,) = tracer.bpffs_dir.glob(f"set-*/traced/{whole.pid}-*/file-0")
    (links.parent / "making-7").mkdir()

    tracer.start()

    after = program.step()
    report = tracer.top_after_tick(program.pid)
    assert report["process"]["live_count"] == after["live_count"] - before["live_count"]
    expect_ledger(tracer.top(whole.pid), ledger)
    assert not (links.parent / "making-7").exists()


@pytest.mark.parametrize("method", ["multi", "perf"])
def test_older_ways_to_attach_outlive_the_daemon(daemon, workload, method):
    """Links of every kind go on without a daemon, and are closed by the next one."""
    program = workload("many_sites", 23)
    tracer = daemon(attach_method=method)
    tracer.attach(program.pid)
    tracer.kill()
    program.step()

    tracer.start()
    ledger = program.step()

    expect_ledger(tracer.top_after_tick(program.pid), ledger)
    tracer.detach(program.pid)
    assert changed_text(program.pid) == []


def test_kept_on_stop(daemon, workload):
    """With --keep-on-stop SIGTERM leaves all of it to the next daemon; Ctrl-C leaves nothing all the same."""
    program = workload("every_function", 1)
    tracer = daemon("--keep-on-stop")
    tracer.attach_with_tables(program.pid)
    program.step()
    tracer.end(signal.SIGTERM)
    program.step()

    tracer.start("--keep-on-stop")
    ledger = program.step()

    expect_ledger(tracer.top_after_tick(program.pid), ledger)
    assert tracer.process(program.pid)["adopted_count"] == 1
    tracer.stop(signal.SIGINT)
    assert changed_text(program.pid) == []


def test_reports_outlive_daemons(daemon, workload, tmp_path):
    """The last report of a process is there after a SIGKILL of the daemon, as it was."""
    program = workload("many_sites", 23)
    tracer = daemon(state={"dir": str(tmp_path / "state")})
    tracer.attach(program.pid)
    ledger = program.step()
    tracer.detach(program.pid)
    tracer.kill()

    tracer.start()

    (kept,) = json.loads(tracer.control("reports", "--pid", program.pid, "--json"))["reports"]
    assert (kept["state"], kept["live_bytes"]) == ("detached", ledger["live_bytes"])
    expect_ledger(json.loads(tracer.control("reports", "--show", kept["id"], "--json")), ledger)


def test_cleanup(daemon, workload):
    """It removes and reports everything of a dead daemon, and touches nothing of a living one."""
    program = workload("churn", 1)
    tracer = daemon()
    tracer.attach(program.pid)
    refused = tracer.clean_up()
    assert refused.returncode == ALREADY_RUNNING, refused
    assert "another bpfleakd" in refused.stderr
    tracer.kill()

    done = tracer.clean_up()

    assert done.returncode == 0, done
    assert f"which traced {program.pid}" in done.stdout
    assert str(tracer.socket) in done.stdout
    assert not tracer.socket.exists()
    assert not tracer.bpffs_dir.exists()
    tracer.check_nothing_left()
    assert changed_text(program.pid) == []
    assert "nothing to remove" in tracer.clean_up().stdout


def test_two_daemons_with_one_directory(daemon, tmp_path):
    """The second is refused, and does the first no harm."""
    first = daemon()
    with pytest.raises(DaemonFailed) as failed:
        daemon(bpffs_dir=str(first.bpffs_dir), socket=str(tmp_path / "other.sock"))
    assert failed.value.exit_code == ALREADY_RUNNING
    assert first.ps() == []


def test_recording_stops_when_no_daemon_comes_back(daemon, workload):
    """Frees are then missed, so the next daemon starts over and reports it."""
    program = workload("churn", 1, 1009)
    tracer = daemon(unattended_s=1)
    tracer.attach(program.pid)
    program.step()
    tracer.kill()
    killed_s = time.monotonic()
    wait_until(lambda: time.monotonic() > killed_s + 1.5)
    program.step()
    program.step()

    tracer.start()

    assert "no daemon for too long" in tracer.log
    assert tracer.process(program.pid)["process"]["allocated_count"] == 0
    ledger = program.step()
    report = tracer.top_after_tick(program.pid)
    assert report["process"]["allocated_count"] == 1009
    assert report["process"]["live_bytes"] == ledger["live_bytes"] == 0


@pytest.mark.parametrize("what", ["a link", "all links", "a breakpoint"])
def test_a_process_without_probes_is_attached_to_again(daemon, workload, what):
    """Links removed, or instructions put back, while no daemon ran: the loss is shown, then all counts."""
    tracer = daemon()
    program = workload("many_sites", 23)
    tracer.attach(program.pid)
    program.step()
    probes = tracer.process(program.pid)["probes"]
    tracer.kill()
    (pins,) = tracer.bpffs_dir.glob(f"set-*/traced/{program.pid}-*")
    if what == "a breakpoint":
        put_back(program.pid, next(probe for probe in probes if probe["function"] == "malloc"))
    else:
        for link in sorted(pins.glob("file-*/link-*"))[: 1 if what == "a link" else None]:
            link.unlink()
    before = program.step()
    tracer.start()
    row = wait_until(lambda: tracer.process(program.pid))
    assert row["losses"]["begun_anew"] == 1
    assert "process.not-adopted" in tracer.log
    after = program.step()
    report = tracer.top_after_tick(program.pid)
    assert report["process"]["live_count"] == after["live_count"] - before["live_count"]
    # It belongs to the process, not to one daemon.
    tracer.kill()
    tracer.start()
    assert wait_until(lambda: tracer.process(program.pid))["losses"]["begun_anew"] == 1


def put_back(pid: int, probe: dict) -> None:
    """Write the instruction of the file over a breakpoint."""
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        span, rights, offset, *_rest, path = (
            line.split(maxsplit=5) if line.count("/") else [*line.split(), "", ""]
        )
        if "x" in rights and path == probe["module"]:
            start = int(span.split("-")[0], 16)
            with open(path, "rb") as file, open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
                file.seek(probe["offset"])
                memory.seek(start + probe["offset"] - int(offset, 16))
                memory.write(file.read(1))


def test_an_unmounted_bpffs_is_reported(daemon, workload):
    """And not that a living process has ended."""
    mount = tracer_mount()
    tracer = daemon(bpffs_dir=str(mount / "bpfleakd"))
    program = workload("blocks")
    subprocess.run(["umount", "--lazy", mount], check=True)
    with pytest.raises(ControlFailed, match="bpf file system was unmounted") as failed:
        tracer.attach(program.pid)
    assert "has ended" not in failed.value.stderr
    assert "ended during" not in failed.value.stderr
    tracer.stop()


def tracer_mount() -> Path:
    """A separate bpf file system, in which nothing else is pinned."""
    mount = Path(tempfile.mkdtemp(prefix="bpffs-"))
    subprocess.run(["mount", "-t", "bpf", "bpf", mount], check=True)
    return mount
