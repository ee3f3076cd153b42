"""The process that a name on the command line stands for."""

from __future__ import annotations

from bpfleakd.api.client import DaemonClient
from bpfleakd.errors import NotAttached, TargetError
from bpfleakd.model.process import ProcessState, ProcessSummary

# So many are listed where a name is of several.
_LISTED = 5


def pid_of_name(client: DaemonClient, name: str) -> int:
    """Return the PID of the traced process with this name, or of the one that ended last, if none is traced.

    A name is the short one of `ps`, or the executable's. Raises NotAttached if there is none, TargetError if
    there are several.
    """
    rows = [row.process for row in client.processes() if name in _names(row.process)]
    traced = [process.pid for process in rows if process.state is ProcessState.TRACED]
    ended = [process.pid for process in rows if process.state is not ProcessState.TRACED]
    if not traced and not ended:
        raise NotAttached(
            f"no traced process is called {name!r}", "`bpfleakctl ps` lists the traced processes"
        )
    if len(traced) > 1:
        listed = ", ".join(map(str, traced[:_LISTED])) + (", …" if len(traced) > _LISTED else "")
        raise TargetError(
            f"{len(traced)} traced processes are called {name!r}: {listed}", "name one by its PID"
        )
    return traced[0] if traced else ended[-1]


def _names(process: ProcessSummary) -> set[str]:
    return {process.comm, process.exe.rpartition("/")[2]}
