"""The checks of this machine, on machines made of files."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from bpfleakd.daemon import doctor
from bpfleakd.errors import KernelUnsupported
from bpfleakd.model.daemon import Check, CheckStatus

from ..api.serving import FakeService, running
from ..samples import some_stats

OK, WARN, FAIL = CheckStatus.OK, CheckStatus.WARN, CheckStatus.FAIL


@pytest.fixture
def machine(tmp_path: Path):
    """A machine on which all is well; returns its checks by name."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/status").write_text("Name:\tx\nCapEff:\t000001ffffffffff\n")
    (tmp_path / "proc/self/mounts").write_text(
        "proc /proc proc rw 0 0\ntracefs /sys/kernel/tracing tracefs rw 0 0\nbpf /sys/fs/bpf bpf rw 0 0\n"
    )
    (tmp_path / "sys/bus/event_source/devices/uprobe").mkdir(parents=True)
    (tmp_path / "sys/bus/event_source/devices/uprobe/type").write_text("9\n")
    (tmp_path / "sys/kernel/security").mkdir(parents=True)
    (tmp_path / "sys/kernel/security/lockdown").write_text("[none] integrity confidentiality\n")

    def checks(release: str = "6.12.41", architecture: str = "x86_64") -> dict[str, Check]:
        found = doctor.run_checks(
            socket_path=tmp_path / "absent.sock",
            proc_root=tmp_path / "proc",
            sys_root=tmp_path / "sys",
            uname=os.uname_result(("Linux", "host", release, "version", architecture)),
            attach_methods=lambda: (("session", "multi", "perf"), {}),
            process_events=lambda: None,
        )
        assert len({check.name for check in found}) == len(found)
        assert all(check.way_out for check in found if check.status != OK)
        return {check.name: check for check in found}

    return checks


def test_a_machine_on_which_all_is_well(machine):
    """Everything that can be read from files is fine."""
    checks = machine()
    for name in ("kernel", "architecture", "CAP_SYS_ADMIN", "CAP_NET_ADMIN", "tracefs", "bpffs", "uprobes"):
        assert checks[name].status == OK
    assert checks["lockdown"].detail == "none"


@pytest.mark.parametrize(
    ("release", "status"),
    [
        ("5.10.0-32-amd64", FAIL),
        ("5.15.0-91-generic", WARN),
        ("6.1.0-18-amd64", OK),
        ("6.11.0", WARN),
        ("6.12.13+deb13", WARN),
        ("6.12.14", OK),
        ("6.13", WARN),
        ("6.13.2", WARN),
        ("6.13.3", OK),
        ("6.18.44-fc-v657", OK),
    ],
)
def test_kernels_that_kill_or_were_never_tried_are_warned_of(machine, release, status):
    """CVE-2025-21834 is in 6.11 to 6.12.13 and 6.13 to 6.13.2."""
    assert machine(release)["kernel"].status == status


def test_only_x86_64(machine):
    """The unwinder and the probe points know no other machine."""
    assert machine(architecture="aarch64")["architecture"].status == FAIL


def test_missing_capabilities_are_named_with_their_purpose(machine, tmp_path):
    """Without SYS_ADMIN and SYS_PTRACE nothing works; without NET_ADMIN less."""
    (tmp_path / "proc/self/status").write_text("CapEff:\t0000000000000000\n")
    checks = machine()
    statuses = {name: check.status for name, check in checks.items() if name.startswith("CAP_")}
    assert statuses == {
        "CAP_SYS_ADMIN": FAIL,
        "CAP_SYS_PTRACE": FAIL,
        "CAP_BPF": WARN,
        "CAP_PERFMON": WARN,
        "CAP_NET_ADMIN": WARN,
    }
    assert checks["CAP_NET_ADMIN"].detail.startswith("missing: receives process events")


def test_the_right_that_only_runtimes_of_others_need(machine, tmp_path):
    """Its absence is not an error; the check states what does not work, and where it is explained."""
    assert machine()["runtime sockets"].status == OK
    for bits, missing in (
        (2, "CAP_DAC_OVERRIDE:"),
        (32, "CAP_KILL:"),
        (34, "CAP_DAC_OVERRIDE and CAP_KILL:"),
    ):
        (tmp_path / "proc/self/status").write_text(f"CapEff:\t{0x1FFFFFFFFFF & ~bits:016x}\n")
        check = machine()["runtime sockets"]
        assert check.status == WARN
        assert f"lacks {missing} cannot ask" in check.detail
        assert "runtime-sockets.conf" in check.way_out


def test_the_right_is_looked_up_of_the_daemon(machine, tmp_path):
    """Root's shell has it always, the daemon only by a drop-in."""
    (tmp_path / f"proc/{os.getpid()}").mkdir()
    (tmp_path / f"proc/{os.getpid()}/status").write_text("CapEff:\t0000000000000000\n")
    with socket.socket(socket.AF_UNIX) as daemon:
        daemon.bind(str(tmp_path / "absent.sock"))
        daemon.listen()
        # The daemon's own check would wait for an answer.
        check = doctor._runtime_sockets(tmp_path / "absent.sock", tmp_path / "proc")
    assert check.status == WARN
    assert check.detail.startswith("the daemon lacks")


def test_sys_admin_includes_bpf(machine, tmp_path):
    """Kernels before 5.8 had nothing else."""
    (tmp_path / "proc/self/status").write_text(f"CapEff:\t{1 << 21 | 1 << 19:016x}\n")
    checks = machine()
    assert checks["CAP_SYS_ADMIN"].status == checks["CAP_BPF"].status == checks["CAP_PERFMON"].status == OK
    assert checks["CAP_NET_ADMIN"].status == WARN


def test_bpf_and_perfmon_do_on_a_newer_kernel(machine, tmp_path):
    """Only perf events need all of SYS_ADMIN."""
    (tmp_path / "proc/self/status").write_text(f"CapEff:\t{1 << 39 | 1 << 38 | 1 << 19:016x}\n")
    checks = machine()
    assert checks["CAP_BPF"].status == checks["CAP_PERFMON"].status == OK
    assert checks["CAP_SYS_ADMIN"].status == WARN
    assert "Linux 6.6" in checks["CAP_SYS_ADMIN"].detail


def test_a_missing_mount_has_the_command_to_make_it(machine, tmp_path):
    """Somewhere else does not count."""
    (tmp_path / "proc/self/mounts").write_text("bpf /run/bpf bpf rw 0 0\n")
    checks = machine()
    assert (checks["bpffs"].status, checks["tracefs"].status) == (FAIL, FAIL)
    assert checks["bpffs"].way_out == "mount -t bpf bpf /sys/fs/bpf"
    assert checks["bpffs"].detail == "mounted on /run/bpf only; expected on /sys/fs/bpf"
    assert checks["tracefs"].way_out == "mount -t tracefs tracefs /sys/kernel/tracing"


@pytest.mark.parametrize(("state", "status"), [("none", OK), ("integrity", OK), ("confidentiality", FAIL)])
def test_lockdown(machine, tmp_path, state, status):
    """Only the strictest kind keeps programs from reading memory."""
    text = "none integrity confidentiality\n".replace(state, f"[{state}]")
    (tmp_path / "sys/kernel/security/lockdown").write_text(text)
    assert machine()["lockdown"].status == status


def test_nothing_to_read_is_no_crash(machine, tmp_path):
    """A sandbox without /proc and /sys."""
    for path in ("proc/self/status", "proc/self/mounts", "sys/bus/event_source/devices/uprobe/type"):
        (tmp_path / path).unlink()
    checks = machine()
    assert {checks[name].status for name in ("capabilities", "bpffs", "tracefs", "uprobes")} == {FAIL}


def test_the_daemon_is_asked(machine, tmp_path):
    """Not started yet is a warning: the rest of the checks are for that moment."""
    assert machine()["daemon"].status == WARN
    with running(FakeService(stats=some_stats()), tmp_path / "absent.sock"):
        assert machine()["daemon"].detail.startswith("version 0.1.0 answers on ")


@pytest.mark.parametrize(
    ("module", "status", "words"),
    [
        ("__version__ = '0.26.0'\nclass BPF: pass\n", OK, "0.26.0 in "),
        ("__version__ = '1'\n", FAIL, "the module bcc is PyPI's, which is another project"),
        ("import nothing_like_it\n", FAIL, "ModuleNotFoundError: No module named 'nothing_like_it'"),
        (None, FAIL, "has no module bcc"),
    ],
)
def test_bcc_is_the_right_one(tmp_path, module, status, words):
    """The PyPI package of that name is another project."""
    if module is not None:
        (tmp_path / "bcc.py").write_text(module)
    python = tmp_path / "python"
    # A Python that finds only the packages beside it.
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec /usr/bin/python3 -S "$@"\n')
    python.chmod(0o755)
    check = doctor._bcc(str(python))
    assert check.status == status
    assert words in check.detail
    assert ("pip uninstall bcc" in check.way_out) == ("PyPI" in words)


def test_a_python_that_does_not_run_is_no_crash(tmp_path):
    """The way out is the same."""
    assert doctor._bcc(str(tmp_path / "absent")).status == FAIL


def test_attach_methods():
    """The best first; a kernel without any, and a check that fails, get a message."""

    def check(methods: tuple[str, ...], passed_over: dict[str, str], release: str = "6.18.5-amd64") -> Check:
        return doctor._attach_method(lambda: (methods, passed_over), release)

    assert check(("session", "multi"), {}).detail == "session (also: multi)"
    assert check(("perf",), {}).detail == "perf"
    assert check((), {"perf": "no"}).status == FAIL

    def refuses() -> tuple[tuple[str, ...], dict[str, str]]:
        raise KernelUnsupported("the fact", "the way out")

    assert doctor._attach_method(refuses, "6.1") == Check("attach method", FAIL, "the fact", "the way out")

    def breaks() -> tuple[tuple[str, ...], dict[str, str]]:
        raise ZeroDivisionError("oh")

    assert doctor._attach_method(breaks, "6.1").detail == "ZeroDivisionError: oh"


def test_a_fallback_is_told_with_its_cause():
    """A feature that the kernel lacks is not a warning, anything else is."""

    def check(release: str) -> Check:
        passed_over = {"session": "Invalid argument", "may_goto": "it does not end"}
        return doctor._attach_method(lambda: (("multi", "perf"), passed_over), release)

    assert check("6.8.0-60-generic") == Check(
        "attach method",
        OK,
        "multi (also: perf); no session: it came with Linux 6.13; no may_goto: it came with Linux 6.9",
    )
    found = check("6.12.5-amd64")
    assert (found.status, found.detail) == (
        WARN,
        "multi (also: perf); no session: it came with Linux 6.13; no may_goto: it does not end",
    )
    assert check("7.3.4+deb13-cloud-amd64").detail == (
        "multi (also: perf); no session: Invalid argument; no may_goto: it does not end"
    )


def test_process_events():
    """Without them it works, only slower: a warning."""

    def refuses() -> None:
        raise KernelUnsupported("the fact", "the way out")

    check = doctor._process_events(refuses)
    assert (check.status, check.way_out) == (WARN, "the way out")
    assert check.detail == "the fact: the daemon scans /proc instead, which is slower"
    assert doctor._process_events(lambda: None).status == OK


def test_missing_libraries_are_warned_of():
    """Names are poorer without them, nothing more."""
    check = doctor._library("libdw", False, "names source lines", "libdw1")
    assert (check.status, check.way_out) == (WARN, "apt install libdw1")
