"""The traced processes, and those that ended recently."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

from bpfleakd import errors
from bpfleakd.model.process import ProcessState
from bpfleakd.process.process import no_such_process
from bpfleakd.tracing.traced_process import TracedProcess

# Reports are kept for this many ended processes.
_ENDED_MAX = 16
_ENDED_WHEN_SHORT = 2


class TracedProcesses:
    """The traced processes (`running`), and those with a last report (`ended`), by pid."""

    def __init__(self) -> None:
        self.running: dict[int, TracedProcess] = {}
        self.ended: OrderedDict[int, TracedProcess] = OrderedDict()

    def find(self, pid: int) -> TracedProcess:
        """The process, traced or ended. Raises NotAttached, or NoSuchProcess if there is none."""
        traced = self.running.get(pid) or self.ended.get(pid)
        if traced is None:
            if not Path(f"/proc/{pid}").exists():
                raise no_such_process(pid)
            raise errors.NotAttached(f"process {pid} is not being traced", f"bpfleakctl attach {pid}")
        return traced

    def find_with_memory(self, pid: int) -> TracedProcess:
        """The process, if it is still traced. Raises NotAttached, or NoSuchProcess if it ended."""
        traced = self.find(pid)
        if traced.state is ProcessState.DETACHED:
            raise errors.NotAttached(
                f"process {pid} is no longer traced", f"bpfleakctl attach {pid}"
            )
        if traced.final is not None:
            raise memory_is_gone(pid)
        return traced

    def remember_ended(self, traced: TracedProcess) -> None:
        """Keep an ended process; the oldest ones are dropped."""
        traced.keep_final_only()
        self.ended[traced.pid] = traced
        while len(self.ended) > _ENDED_MAX:
            self.ended.popitem(last=False)

    def forget_ended(self, pid: int) -> None:
        """Drop the last report of a process, if there is one."""
        self.ended.pop(pid, None)

    def drop_ended(self) -> None:
        """Drop all last reports but the newest."""
        while len(self.ended) > _ENDED_WHEN_SHORT:
            self.ended.popitem(last=False)


def memory_is_gone(pid: int) -> errors.NoSuchProcess:
    """Error for memory queries about an exited process."""
    return errors.NoSuchProcess(
        f"process {pid} has ended, and its memory with it", "bpfleakctl top shows its last report"
    )
