"""The kernel's process events: fork, exec, exit and changes of name or user, as they happen.

They come over the netlink connector (linux/cn_proc.h, linux/connector.h), to the initial pid and network
namespaces only; elsewhere the kernel sends nothing, or refuses. pyroute2 creates the socket and the request.
This module reads and decodes the messages: pyroute2's decoder takes 20 µs for each and raises for a process
whose name is not UTF-8, and its socket is unusable once events were lost (ENOBUFS).
"""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bpfleakd import errors, pid_namespace
from bpfleakd.model.process_events import ProcessChange, ProcessEvent

# linux/netlink.h: struct nlmsghdr; linux/connector.h: struct cn_msg; linux/cn_proc.h: struct proc_event.
_CN_MSG = struct.Struct("=16xIIIIHH")
_WHAT = struct.Struct("=I")
_WHAT_AT = _CN_MSG.size
_DATA_AT = _WHAT_AT + 16  # after what, cpu and timestamp_ns
_IDS = struct.Struct("=II")
_FORK_IDS = struct.Struct("=IIII")
_CN_IDX_PROC, _CN_VAL_PROC = 1, 1

_NONE, _FORK, _EXEC, _UID, _COMM, _EXIT = 0x0, 0x1, 0x2, 0x4, 0x200, 0x8000_0000
_OF_THE_PROCESS = {_UID: ProcessChange.CHANGED, _COMM: ProcessChange.CHANGED, _EXIT: ProcessChange.EXIT}

# The kernel allocates twice as much, and 768 bytes of it per event: room for some 43,000.
_RECEIVE_BUFFER_BYTES = 16 << 20
_SO_RCVBUFFORCE = 33  # asm-generic/socket.h; Python has no name for it
_MESSAGE_BYTES = 4096
_BATCH = 512
_ACK_TIMEOUT_S = 1.0

_WAY_OUT = "run it in the host's pid and network namespaces, with CAP_NET_ADMIN"


class ProcessEvents:
    """A subscription. Raises KernelUnsupported or AccessDenied if process events are unavailable."""

    def __init__(self, proc: Path = Path("/proc"), *, ack_timeout_s: float = _ACK_TIMEOUT_S) -> None:
        _check_namespace(proc)
        with contextlib.ExitStack() as undo:
            _import_pyroute2_in_parts()
            # Imported here, because a daemon that only scans does not need it.
            from pyroute2.netlink.connector.cn_proc import ProcEventSocket

            try:
                netlink = ProcEventSocket()
                undo.callback(netlink.close)
                netlink.bind()
                self._socket = socket.socket(fileno=os.dup(netlink.fileno()))
                undo.callback(self._socket.close)
                self._socket.setblocking(False)
                self._enlarge_buffer()
                self._socket.send(_listen_request())
            except (OSError, KeyError) as error:  # KeyError: pyroute2, when no bind works
                raise _refused(error) from error
            self._wait_for_ack(ack_timeout_s)
            self._close = undo.pop_all().close
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)

    def read(self, timeout_s: float) -> Sequence[ProcessEvent]:
        """The next events, some hundred at most; none if none arrive in time.

        A GAP among them means that the kernel had to drop some. Raises OSError if the socket is broken.
        """
        events: list[ProcessEvent] = []
        if not self._poll.poll(timeout_s * 1e3):
            return events
        while len(events) < _BATCH:
            try:
                event = parse_event(self._socket.recv(_MESSAGE_BYTES, socket.MSG_DONTWAIT))
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                event = ProcessEvent(ProcessChange.GAP)
            if event is not None:
                events.append(event)
        return events

    def close(self) -> None:
        """Unsubscribe."""
        self._close()

    def _enlarge_buffer(self) -> None:
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BUFFER_BYTES)
        except PermissionError:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)

    def _wait_for_ack(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        messages = select.poll()
        messages.register(self._socket, select.POLLIN)
        while (left_s := deadline - time.monotonic()) > 0:
            if not messages.poll(left_s * 1000):
                break
            message = self._socket.recv(_MESSAGE_BYTES)
            if _what(message) == _NONE:
                (code,) = _WHAT.unpack_from(message, _DATA_AT)
                if code:
                    raise _refused(OSError(code, os.strerror(code)))
                return
            if _what(message) is not None:
                return  # Events arrive: the answer to another program's request came before.
        raise errors.KernelUnsupported("the kernel sends no process events here", _WAY_OUT)


def _check_namespace(proc: Path) -> None:
    # If another listener exists, events arrive in every namespace, with pids that mean nothing there.
    if not pid_namespace.is_initial(proc):
        raise errors.KernelUnsupported("process events do not reach a PID namespace (a container)", _WAY_OUT)


def parse_event(message: bytes) -> ProcessEvent | None:
    """The event in a netlink message; None for a thread's, and for kinds that are not needed."""
    what = _what(message)
    try:
        if what == _FORK:
            _parent_tid, parent_pid, tid, pid = _FORK_IDS.unpack_from(message, _DATA_AT)
            return ProcessEvent(ProcessChange.FORK, pid, parent_pid) if tid == pid else None
        if what == _EXEC:
            return ProcessEvent(ProcessChange.EXEC, _IDS.unpack_from(message, _DATA_AT)[1])
        if what in _OF_THE_PROCESS:
            tid, pid = _IDS.unpack_from(message, _DATA_AT)
            return ProcessEvent(_OF_THE_PROCESS[what], pid) if tid == pid else None
    except struct.error:  # shorter than any kernel sends
        return None
    return None


def _what(message: bytes) -> int | None:
    if len(message) < _DATA_AT:
        return None
    index, value, *_ = _CN_MSG.unpack_from(message)
    if (index, value) != (_CN_IDX_PROC, _CN_VAL_PROC):
        return None
    what: int = _WHAT.unpack_from(message, _WHAT_AT)[0]
    return what


def _import_pyroute2_in_parts() -> None:
    """Import only the required parts of pyroute2.

    Its package imports all of them, 7 MB of the 64 that the daemon may have resident, while the socket needs
    0.5. So the package is registered without running its `__init__`; names are imported from the modules that
    define them.
    """
    if "pyroute2" not in sys.modules:
        spec = importlib.util.find_spec("pyroute2")
        assert spec
        sys.modules["pyroute2"] = importlib.util.module_from_spec(spec)


def _listen_request() -> bytes:
    from pyroute2.netlink import NLMSG_DONE
    from pyroute2.netlink.connector.cn_proc import PROC_CN_MCAST_LISTEN, proc_event_control

    request = proc_event_control()
    request["idx"], request["val"] = _CN_IDX_PROC, _CN_VAL_PROC
    request["action"], request["len"] = PROC_CN_MCAST_LISTEN, 4
    request["header"]["type"] = NLMSG_DONE
    request.encode()
    return bytes(request.data)


def _refused(error: OSError | KeyError) -> errors.KernelError | errors.AccessDenied:
    if isinstance(error, KeyError) or error.errno in (errno.EPERM, errno.EACCES):
        return errors.AccessDenied("the kernel refuses process events to this process", _WAY_OUT)
    return errors.KernelUnsupported(f"no process events here: {error.strerror}", _WAY_OUT)
