"""The unit under a real systemd: ready, status, sandbox, reload, watchdog, restarts, stop."""

from __future__ import annotations

import json
import re
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ..kernel.kernel_objects import wait_until_gone
from ..kernel.waiting import wait_until
from ..kernel.workloads import Workload, build
from .container import CommandFailed, Container
from .service import BY_HAND, CONFIG, UNIT, Service

HOLD_THREADS = Path(__file__).with_name("hold_threads.py")

# linux/capability.h: DAC_READ_SEARCH, NET_ADMIN, SYS_PTRACE, SYS_ADMIN
CAPABILITIES = 1 << 2 | 1 << 12 | 1 << 19 | 1 << 21


def status_text(service: Service) -> str:
    return service.show("StatusText")


def attach(service: Service, program: str) -> int:
    """Trace a program of the user nobody; returns its pid."""
    pid = service.start_program(program)
    service.control("attach", pid)
    return pid


# -- what it does ------------------------------------------------------------------------------------------


def test_it_finds_a_leak_and_its_status_line_has_it(service: Service, leaker: str):
    """In a program that only its user may read, with the source line; systemd shows the status."""
    assert status_text(service) == "0 traced, 0 growing, 0 lost"
    pid = attach(service, leaker)
    wait_until(lambda: status_text(service) == "1 traced, 1 growing, 0 lost")
    site = max(service.top(pid)["sites"], key=lambda site: site["live_bytes"])
    assert (site["function"], site["live_bytes"] % 101) == ("leak_here", 0)
    assert re.search(r"leaker\.c:\d+$", site["location"])
    assert site["stack"][-1]["function"] == "_start"


def test_a_scan_works_within_the_sandbox(service: Service, leaker: str):
    """It stops the program with ptrace and reads all of its memory: nothing points to the leaked blocks."""
    pid = attach(service, leaker)
    wait_until(lambda: service.top(pid)["sites"])
    report = json.loads(service.control("scan", "--pid", pid, "--older-than", "0", "--json"))
    assert (report["method"], "memory-unread" in report["caveats"]) == ("stopped", False)
    assert report["sums"]["directly_lost_count"] >= 23
    service.machine.run("kill", "-0", str(pid))


def test_the_sandbox_leaves_it_no_more_than_it_needs(service: Service):
    """Four capabilities and no way to get others; its children have no more."""
    status = service.machine.run("cat", f"/proc/{service.pid}/status")
    assert int(re.findall(r"^CapEff:\s*(\w+)", status, re.MULTILINE)[0], 16) == CAPABILITIES
    assert int(re.findall(r"^CapBnd:\s*(\w+)", status, re.MULTILINE)[0], 16) == CAPABILITIES
    assert re.search(r"^NoNewPrivs:\s*1$", status, re.MULTILINE)
    assert re.search(r"^Seccomp:\s*2$", status, re.MULTILINE)


def test_perf_maps_are_read_in_spite_of_its_own_tmp(service: Service):
    """PrivateTmp gives the daemon another /tmp than the program, whose perf map is there."""
    jit = service.machine.give(build("jit"), "/root/jit")
    program = Workload([*service.machine.entrance(), jit])
    try:
        pid = int(service.machine.run("pgrep", "--exact", "--newest", "jit"))
        service.control("attach", pid)
        program.step()
        functions = {site["function"] for site in service.top(pid)["sites"]}
        assert "LeakyTemplate::render" in functions
    finally:
        program.kill()


def test_systemd_finds_no_fault_in_the_unit(service: Service):
    """`verify` says nothing, and the exposure is at most 3.1."""
    assert service.machine.run("systemd-analyze", "verify", UNIT) == ""
    verdict = service.machine.run("systemd-analyze", "security", "--offline=true", UNIT).splitlines()[-1]
    exposure = re.search(r"exposure level for \S+: ([0-9.]+)", verdict)
    assert exposure
    assert float(exposure[1]) <= 3.1


def test_without_sys_admin_it_works_with_a_drop_in(service: Service, leaker: str):
    """The capabilities that the unit's comment gives for kernels that need no perf events."""
    (event,) = service.events("kernel.loaded")[-1:]
    if event["method"] == "perf":
        pytest.skip("this kernel links uprobes by perf events only, which need CAP_SYS_ADMIN")
    unit = service.machine.run("cat", f"/usr/lib/systemd/system/{UNIT}")
    smaller = re.findall(r"^# +(CapabilityBoundingSet=.*)", unit, re.MULTILINE)
    assert len(smaller) == 2
    service.start_with("\n".join(smaller))
    pid = attach(service, leaker)
    wait_until(lambda: any(site["function"] == "leak_here" for site in service.top(pid)["sites"]))


# -- access ------------------------------------------------------------------------------------------------


@contextmanager
def user(machine: Container, name: str, *groups: str) -> Iterator[str]:
    machine.run("useradd", "--no-create-home", *(["--groups", ",".join(groups)] if groups else []), name)
    try:
        yield name
    finally:
        machine.run("userdel", name)


def test_the_group_may_trace_and_others_get_a_hint(service: Service, leaker: str):
    """The socket belongs to root and the group; the log has the users."""
    status = service.machine.run("stat", "--format=%U:%G %a", "/run/bpfleakd/bpfleakd.sock")
    assert status.strip() == "root:bpfleakd 660"
    pid = service.start_program(leaker)
    attach_it = ("bpfleakctl", "attach", str(pid))
    with user(service.machine, "alice", "bpfleakd") as alice, user(service.machine, "mallory") as mallory:
        with pytest.raises(CommandFailed, match="usermod -aG bpfleakd") as refused:
            service.machine.run("runuser", "-u", mallory, "--", *attach_it)
        assert refused.value.exit_code == 4
        assert service.processes() == []
        service.machine.run("runuser", "-u", alice, "--", *attach_it)
        assert [process["pid"] for process in service.processes()] == [pid]
        (event,) = service.events("api.attach")[-1:]
        assert (event["pid"], event["by_user"]) == (pid, "alice")


# -- reload ------------------------------------------------------------------------------------------------


def test_reload_takes_a_changed_configuration_over(service: Service):
    """With the same process, which says when it is done."""
    pid = service.pid
    service.machine.write(CONFIG, BY_HAND + "tick_s: 0.5\n")
    service.systemctl("reload", UNIT)
    wait_until(lambda: any(event["tick_s"] == 0.5 for event in service.events("config.reloaded")))
    assert (service.pid, service.show("SubState")) == (pid, "running")


def test_reload_refuses_a_wrong_configuration(service: Service):
    """systemctl fails, the journal has the line, and the daemon continues."""
    pid = service.pid
    service.machine.write(CONFIG, BY_HAND + "tick: 3\n")
    with pytest.raises(CommandFailed):
        service.systemctl("reload", UNIT)
    assert f"{CONFIG}:2: tick: unknown key" in service.journal()
    assert (service.pid, service.show("ActiveState")) == (pid, "active")


def test_a_wrong_configuration_is_no_reason_to_try_again(service: Service):
    """No restart repairs it."""
    with pytest.raises(CommandFailed):
        service.start_with(configuration="tick: 3\n")
    assert service.show("ActiveState") == "failed"
    assert service.show("NRestarts") == "0"


# -- when it hangs or dies ---------------------------------------------------------------------------------


def test_the_watchdog_restarts_it_when_only_the_tracer_hangs(service: Service):
    """Its API still answers, and still it is restarted; the log has where the threads were."""
    service.start_with("WatchdogSec=2")
    pid = service.pid
    script = service.machine.give(HOLD_THREADS, "/root/hold_threads.py")
    program = [*service.machine.entrance(), "/usr/bin/python3", script, str(pid)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        service.wait_for_another_daemon(pid)
    journal = service.journal()
    assert "Watchdog timeout" in journal
    assert "Fatal Python error: Aborted" in journal
    assert re.search(r"^Thread 0x\w+", journal, re.MULTILINE)


def test_the_watchdog_restarts_it_when_all_of_it_stands_still(service: Service):
    """SIGSTOP, as a stuck disk would do it."""
    service.start_with("WatchdogSec=2")
    pid = service.pid
    service.machine.run("kill", "-STOP", str(pid))
    service.wait_for_another_daemon(pid)
    assert service.show("NRestarts") == "1"


def test_the_watchdog_is_content_with_a_daemon_that_works(service: Service, leaker: str):
    """Several times the watchdog's period, while it traces."""
    # An attach alone may take some seconds on a busy machine.
    service.start_with("WatchdogSec=5", BY_HAND + "tick_s: 2\n")
    pid = service.pid
    attach(service, leaker)
    service.machine.run("sleep", "11")
    assert service.pid == pid


def live_count(service: Service, pid: int) -> int:
    return service.top(pid)["process"]["live_count"]


def test_kill_9_is_repaired(service: Service, leaker: str):
    """A new daemon on the same socket adopts what the killed one traced."""
    pid = service.pid
    program = attach(service, leaker)
    before = wait_until(lambda: live_count(service, program))
    service.machine.run("kill", "-KILL", str(pid))
    service.wait_for_another_daemon(pid)
    assert live_count(service, program) > before
    assert stat.S_ISSOCK(service.machine.path("/run/bpfleakd/bpfleakd.sock").stat().st_mode)


def test_a_restart_continues_tracing(service: Service, leaker: str):
    """The blocks from before are still there, and those of the time between."""
    pid = service.pid
    program = attach(service, leaker)
    before = wait_until(lambda: live_count(service, program))
    service.systemctl("restart", UNIT)
    assert service.pid not in (0, pid)
    assert live_count(service, program) > before


# -- stop --------------------------------------------------------------------------------------------------


def test_stop_leaves_nothing(service: Service, leaker: str):
    """No process, pin, BPF object or socket remains, while the traced program continues."""
    pid = attach(service, leaker)
    objects = service.kernel_objects()
    assert objects
    service.systemctl("stop", UNIT)
    assert service.show("Result") == "success"
    assert service.show("ExecMainStatus") == "0"
    assert sorted(service.machine.bpffs.iterdir()) == []
    assert not wait_until_gone(objects)
    assert not service.machine.path("/run/bpfleakd").exists()
    service.machine.run("kill", "-0", str(pid))
