"""The messages of the process connector, as the kernel lays them out (linux/cn_proc.h)."""

from __future__ import annotations

import struct
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroute2.netlink.connector import cn_proc

from bpfleakd.errors import KernelUnsupported
from bpfleakd.kernel.process_events import ProcessEvents, parse_event
from bpfleakd.model.process_events import ProcessChange, ProcessEvent


def a_message(kind: type[cn_proc.proc_event_base], what: int, **fields: int) -> bytes:
    """A message as pyroute2 writes it."""
    message = kind()
    message["idx"], message["val"] = cn_proc.CN_IDX_PROC, 1
    message["what"], message["cpu"], message["timestamp_ns"] = what, 7, 1_000_003
    for name, value in fields.items():
        message[name] = value
    message.encode()
    return bytes(message.data)


def of_process(kind: type[cn_proc.proc_event_base], what: int, tid: int, pid: int, **more: int) -> bytes:
    return a_message(kind, what, process_pid=tid, process_tgid=pid, **more)


def a_fork(tid: int, pid: int) -> bytes:
    parent = {"parent_pid": 19, "parent_tgid": 17}
    what = cn_proc.PROC_EVENT_FORK
    return a_message(cn_proc.proc_event_fork, what, child_pid=tid, child_tgid=pid, **parent)


def an_exit(tid: int, pid: int) -> bytes:
    more = {"exit_code": 3, "exit_signal": 17, "parent_pid": 1, "parent_tgid": 1}
    return of_process(cn_proc.proc_event_exit, cn_proc.PROC_EVENT_EXIT, tid, pid, **more)


def test_processes_that_come_and_go():
    """With their parents."""
    assert parse_event(a_fork(23, 23)) == ProcessEvent(ProcessChange.FORK, 23, parent_pid=17)
    executed = of_process(cn_proc.proc_event_exec, cn_proc.PROC_EVENT_EXEC, 23, 23)
    assert parse_event(executed) == ProcessEvent(ProcessChange.EXEC, 23)
    assert parse_event(an_exit(23, 23)) == ProcessEvent(ProcessChange.EXIT, 23)


def test_threads_are_passed_over():
    """The kernel reports them as forks and exits, too."""
    assert parse_event(a_fork(29, 23)) is None
    assert parse_event(an_exit(29, 23)) is None


def test_another_user_is_a_change():
    """Rules may ask for it."""
    more = {"ruid": 1000, "euid": 1001}
    message = of_process(cn_proc.proc_event_uid, cn_proc.PROC_EVENT_UID, 23, 23, **more)
    assert parse_event(message) == ProcessEvent(ProcessChange.CHANGED, 23)


@pytest.mark.parametrize("comm", [b"shop", b"\xff\xfe not UTF-8", b"\0" * 16])
def test_another_name_is_a_change(comm):
    """Whatever the name is made of."""
    head = of_process(cn_proc.proc_event_exec, cn_proc.PROC_EVENT_COMM, 23, 23)
    assert parse_event(head + comm.ljust(16, b"\0")) == ProcessEvent(ProcessChange.CHANGED, 23)


@pytest.mark.parametrize("what", [cn_proc.PROC_EVENT_SID, cn_proc.PROC_EVENT_COREDUMP, 0x4000])
def test_events_of_no_interest(what):
    """Those of kernels to come, too."""
    assert parse_event(of_process(cn_proc.proc_event_exec, what, 23, 23)) is None


def test_messages_of_other_connectors():
    """The netlink group is shared."""
    message = bytearray(a_fork(23, 23))
    struct.pack_into("=I", message, 16, 2)
    assert parse_event(bytes(message)) is None


@given(st.binary(max_size=100) | st.integers(0, 80).map(lambda length: a_fork(23, 23)[:length]))
def test_a_damaged_message_is_no_event(message):
    """And no error: the thread that reads must not end."""
    event = parse_event(message)
    assert event is None or message == a_fork(23, 23)[: len(message)]


def test_in_a_pid_namespace_of_its_own_there_are_none(tmp_path):
    """With another listener they arrive nevertheless, with pids of the host."""
    (tmp_path / "self/ns").mkdir(parents=True)
    (tmp_path / "self/ns/pid").touch()
    with pytest.raises(KernelUnsupported, match="PID namespace"):
        ProcessEvents(tmp_path)


def test_only_parts_of_pyroute2_are_imported():
    """All of it would be a tenth of the daemon's memory."""
    program = """
import sys
from bpfleakd.kernel import process_events
process_events._import_pyroute2_in_parts()
from pyroute2.netlink.connector.cn_proc import ProcEventSocket
assert process_events._listen_request()
assert "pyroute2.netlink.rtnl" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
