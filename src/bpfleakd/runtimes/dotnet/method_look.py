"""Requests the methods of a .NET process; a helper reads the answer.

The process needs 10 to 50 ms of CPU time for some hundred methods.
"""

from __future__ import annotations

import time

import msgspec
from msgspec import Struct

from bpfleakd.runtimes.dotnet.diagnostics import TIMEOUT_S, DiagnosticsError, Endpoint, Provider
from bpfleakd.runtimes.dotnet.stream_jobs import ROWS_AT_A_TIME, RUNDOWN_JOB, CodePart, RundownPart
from bpfleakd.sandbox.channel import HelperFailed
from bpfleakd.sandbox.helpers import Helpers

_BUFFER_MIB = 64
_QUIET = Provider(keywords=0, level=0)
_METHODS_MAX = 200_000


class Methods(Struct):
    """Compiled methods, and the paths of modules by id. `left_out` methods were beyond the limit."""

    code: list[CodePart] = msgspec.field(default_factory=list)
    modules: dict[int, str] = msgspec.field(default_factory=dict)
    left_out: int = 0


def take_rundown(helpers: Helpers, endpoint: Endpoint, timeout_s: float = TIMEOUT_S) -> Methods:
    """All methods of a process. Raises DiagnosticsError, within `timeout_s` at the latest."""
    try:
        helpers.prepare()
        deadline_s = time.monotonic() + timeout_s
        session = endpoint.start([_QUIET], buffer_mib=_BUFFER_MIB, rundown=True, timeout_s=timeout_s)
        try:
            with endpoint.stopping(session, max(0.001, deadline_s - time.monotonic())):
                return _read(helpers, session.fileno(), max(0.001, deadline_s - time.monotonic()))
        finally:
            session.close()
    except HelperFailed as error:
        raise DiagnosticsError(f"its list of methods cannot be read: {error}") from error


def _read(helpers: Helpers, session: int, limit_s: float) -> Methods:
    found = Methods()
    answers_max = _METHODS_MAX // ROWS_AT_A_TIME + 2
    for part in helpers.answers(
        RUNDOWN_JOB, None, [session], RundownPart, limit_s=limit_s, answers_max=answers_max
    ):
        found.code += part.code
        found.modules |= part.modules
        found.left_out += part.left_out
        if part.is_last:
            return found
    raise DiagnosticsError(f"it does not answer within {TIMEOUT_S:.0f} s")
