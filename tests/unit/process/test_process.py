"""Processes as /proc shows them, and which of them must be left alone."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from pathlib import Path

import pytest

from bpfleakd import errors
from bpfleakd.model.process import ProcessId
from bpfleakd.process.process import (
    ProcessInfo,
    command_of,
    is_hosts_init,
    read_process,
    thread_commands,
)
from bpfleakd.tracing.attaching.refusals import check_traceable, seccomp_kills

from ..elf.building import compiled
from .proc_files import a_process

SAFE, DEADLY = "6.18.0", "6.12.13"


class TestReading:
    """From text to values."""

    def test_all_of_it(self, tmp_path: Path) -> None:
        """Every field comes from where the kernel writes it."""
        pid = a_process(tmp_path, 23, comm=b"shop", start_ticks=7_919, status={"Threads": "101"})
        assert read_process(pid, tmp_path) == ProcessInfo(
            id=ProcessId(23, 7_919),
            namespace_pid=23,
            comm="shop",
            exe="/usr/bin/shop",
            uid=1001,
            state="S",
            threads=101,
            kernel_thread=False,
            seccomp_filtered=False,
        )

    @pytest.mark.parametrize(
        ("comm", "shown"),
        [
            (b"two words", "two words"),
            (b"a) S 1 2 3 (b", "a) S 1 2 3 (b"),
            (b"))((", "))(("),
            (b"line\nfeed", "line\\x0afeed"),
            (b"\nTgid:\t99", "\\x0aTgid:\\x0999"),
            (b"\rTgid:\t99", "\\x0dTgid:\\x0999"),
            (b"back\\slash", "back\\slash"),
            (b"\xff\xfe", "\\xff\\xfe"),
            (b"\x1b[2J", "\\x1b[2J"),
            (b"", ""),
        ],
    )
    def test_hostile_command_names(self, tmp_path: Path, comm: bytes, shown: str) -> None:
        """A process names itself as it likes: the fields behind are right, and the name is shown safely."""
        process = read_process(a_process(tmp_path, comm=comm), tmp_path)
        assert (process.id, process.state, process.uid) == (ProcessId(4_711, 8_009), "S", 1001)
        assert process.comm == shown

    def test_a_process_in_a_container(self, tmp_path: Path) -> None:
        """Its own pid is the last one, that of the innermost namespace."""
        a_process(tmp_path, 4_711, status={"NSpid": "4711\t23\t1"})
        process = read_process(4_711, tmp_path)
        assert (process.id.pid, process.namespace_pid) == (4_711, 1)

    def test_kernels_without_some_fields(self, tmp_path: Path) -> None:
        """NSpid and Seccomp depend on the kernel's configuration."""
        a_process(tmp_path, status={"NSpid": "", "Seccomp": ""})
        process = read_process(4_711, tmp_path)
        assert (process.namespace_pid, process.seccomp_filtered) == (4_711, False)

    def test_kernel_threads(self, tmp_path: Path) -> None:
        """The flag PF_KTHREAD identifies them; their program cannot be read."""
        process = read_process(a_process(tmp_path, flags=0x0420_8040, exe=None), tmp_path)
        assert (process.kernel_thread, process.exe) == (True, "")

    @pytest.mark.parametrize(("mode", "filtered"), [("0", False), ("1", True), ("2", True)])
    def test_seccomp(self, tmp_path: Path, mode: str, filtered: bool) -> None:
        """Strict mode restricts system calls as filters do."""
        a_process(tmp_path, status={"Seccomp": mode})
        assert read_process(4_711, tmp_path).seccomp_filtered == filtered

    def test_a_program_that_is_gone_or_oddly_named(self, tmp_path: Path) -> None:
        """A deleted program keeps its name; terminal escapes in it are visible."""
        a_process(tmp_path, 1, exe="/tmp/a\x1b[2J (deleted)")
        a_process(tmp_path, 2, exe=b"/tmp/\xff")
        assert read_process(1, tmp_path).exe == "/tmp/a\\x1b[2J (deleted)"
        assert read_process(2, tmp_path).exe == "/tmp/\\xff"

    def test_a_thread_is_no_process(self, tmp_path: Path) -> None:
        """/proc shows a thread by its tid too: the error names its process."""
        a_process(tmp_path, 4_712, status={"Tgid": "4711"})
        with pytest.raises(errors.NoSuchProcess, match="thread of process 4711") as raised:
            read_process(4_712, tmp_path)
        assert "4711" in raised.value.hint

    def test_no_such_process(self, tmp_path: Path) -> None:
        """A missing process raises NoSuchProcess, or has an empty name."""
        with pytest.raises(errors.NoSuchProcess, match="no process 4711"):
            read_process(4_711, tmp_path)
        assert command_of(4_711, tmp_path) == ""
        assert thread_commands(4_711, tmp_path) == {}

    def test_threads_by_name(self, tmp_path: Path) -> None:
        """Every thread has its own name, of any bytes."""
        a_process(tmp_path, threads={4_711: b"shop", 4_712: b"a b", 4_713: b"\x1b\n"})
        assert thread_commands(4_711, tmp_path) == {4_711: "shop", 4_712: "a b", 4_713: "\\x1b\\x0a"}

    def test_a_thread_that_ends_meanwhile(self, tmp_path: Path) -> None:
        """A thread whose name has become unreadable is omitted."""
        a_process(tmp_path, threads={4_711: b"shop", 4_712: b"gone"})
        (tmp_path / "4711/task/4712/comm").unlink()
        assert thread_commands(4_711, tmp_path) == {4_711: "shop"}


class TestRealProc:
    """The same of this machine's /proc."""

    def test_ourselves(self) -> None:
        """The kernel's data on this process agree with Python's."""
        process = read_process(os.getpid())
        boot_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        age_s = boot_s - process.id.start_ticks / os.sysconf("SC_CLK_TCK")
        assert 0 <= age_s <= boot_s
        assert process.id.pid == process.namespace_pid == os.getpid()
        assert process.exe == os.path.realpath("/proc/self/exe")
        assert process.uid == os.geteuid()
        assert process.threads == len(thread_commands(os.getpid())) == len(os.listdir("/proc/self/task"))
        assert not process.kernel_thread
        check_traceable(process, own_pid=1, kernel_release=SAFE)

    def test_a_name_of_our_own_choice(self) -> None:
        """A thread that calls itself something nasty is shown so, and disturbs nothing."""
        named, done = threading.Event(), threading.Event()
        tids = []

        def thread() -> None:
            tids.append(threading.get_native_id())
            Path(f"/proc/self/task/{tids[0]}/comm").write_bytes(b"a) R 1\n\x1b[m")
            named.set()
            done.wait()

        running = threading.Thread(target=thread)
        running.start()
        named.wait()
        try:
            assert thread_commands(os.getpid())[tids[0]] == "a) R 1\\x0a\\x1b[m"
            with pytest.raises(errors.NoSuchProcess, match=f"thread of process {os.getpid()}"):
                read_process(tids[0])
        finally:
            done.set()
            running.join()

    def test_a_zombie(self) -> None:
        """A child without a parent waiting for it is refused as a zombie."""
        child = subprocess.Popen(["true"])
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        try:
            process = read_process(child.pid)
            assert (process.state, process.threads) == ("Z", 1)
            with pytest.raises(errors.TargetRefused, match="is a zombie"):
                check_traceable(process, own_pid=1, kernel_release=SAFE)
        finally:
            child.wait()

    def test_a_program_without_its_main_thread(self, tmp_path: Path) -> None:
        """It looks like a zombie and is none: the refusal does not say that its memory is free."""
        source = """
        #include <pthread.h>
        #include <unistd.h>
        static void *work(void *nothing) { pause(); return nothing; }
        int main(void) { pthread_t t; pthread_create(&t, 0, work, 0); pthread_exit(0); }
        """
        with subprocess.Popen([compiled(tmp_path, source, "-pthread")]) as child:
            try:
                process = read_process(child.pid)
                while process.state != "Z":
                    time.sleep(0.005)
                    process = read_process(child.pid)
                assert process.threads == 2
                with pytest.raises(errors.TargetRefused, match=r"main thread .* has ended"):
                    check_traceable(process, own_pid=1, kernel_release=SAFE)
            finally:
                child.kill()


class TestRefusals:
    """Processes that must not be traced, each with its reason."""

    def check(self, proc: Path, *, own_pid: int = 1, release: str = SAFE) -> None:
        check_traceable(read_process(4_711, proc), own_pid, release)

    def test_init(self, tmp_path: Path) -> None:
        """The first process of the machine: a mistake there stops it."""
        a_process(tmp_path, state="S")
        with pytest.raises(errors.TargetRefused, match="is init"):
            check_traceable(read_process(4_711, tmp_path), 1, SAFE, is_init=True)

    def test_an_ordinary_process(self, tmp_path: Path) -> None:
        """Nothing speaks against it, running or stopped, on whatever kernel."""
        for state in "RSDTt":
            a_process(tmp_path / state, state=state)
            self.check(tmp_path / state)
            self.check(tmp_path / state, release=DEADLY)

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"flags": 0x0020_0000, "exe": None}, "kernel thread"),
            ({"state": "Z"}, "zombie"),
            ({"state": "X"}, "zombie"),
            ({"state": "Z", "status": {"Threads": "2"}}, "main thread"),
        ],
    )
    def test_by_its_nature(self, tmp_path: Path, changes: dict, reason: str) -> None:
        """The message names pid, command and reason."""
        a_process(tmp_path, **changes)
        with pytest.raises(errors.TargetRefused, match=reason) as raised:
            self.check(tmp_path)
        assert "4711 (shop)" in raised.value.message
        assert raised.value.hint

    def test_the_daemon_itself(self, tmp_path: Path) -> None:
        """It would record its own allocations for recording."""
        a_process(tmp_path)
        with pytest.raises(errors.TargetRefused, match="bpfleakd itself"):
            self.check(tmp_path, own_pid=4_711)

    @pytest.mark.parametrize("mode", ["1", "2"])
    def test_seccomp_where_it_would_be_deadly(self, tmp_path: Path, mode: str) -> None:
        """On an affected kernel a process under seccomp is left alone, on others it is not."""
        a_process(tmp_path, status={"Seccomp": mode})
        self.check(tmp_path, release=SAFE)
        with pytest.raises(errors.TargetRefused, match="CVE-2025-21834"):
            self.check(tmp_path, release=DEADLY)


@pytest.mark.parametrize(
    ("release", "kills"),
    [
        ("6.10.14", False),
        ("6.11.0-19-generic", True),
        ("6.11.11", True),
        ("6.12", True),
        ("6.12.13+deb13-amd64", True),
        ("6.12.14", False),
        ("6.12.100-cloud", False),
        ("6.13.0-rc4", True),
        ("6.13.2", True),
        ("6.13.3", False),
        ("6.14.0", False),
        ("6.1.11", False),
        ("6.18.44-fc-v657", False),
        ("7.12.3", False),
        ("5.10.0-28-amd64", False),
        ("something else", False),
        ("", False),
    ],
)
def test_kernels_on_which_return_probes_kill(release: str, kills: bool) -> None:
    """CVE-2025-21834: since 6.11, fixed in 6.12.14, 6.13.3 and 6.14."""
    assert seccomp_kills(release) == kills


@pytest.mark.parametrize(
    ("pid", "initial", "is_init"), [(1, True, True), (1, False, False), (2, True, False), (2, False, False)]
)
def test_init_is_the_machines(
    monkeypatch: pytest.MonkeyPatch, pid: int, initial: bool, is_init: bool
) -> None:
    """The first process of a container is often the very program that leaks."""
    monkeypatch.setattr("bpfleakd.pid_namespace.is_initial", lambda: initial)
    assert is_hosts_init(pid) is is_init
