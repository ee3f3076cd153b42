"""The client of the daemon's API over its unix socket, used by bpfleakctl.

It raises an error from the daemon as the same class as in the daemon.
"""

from __future__ import annotations

import contextlib
import grp
import http.client
import socket
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlencode

import msgspec

from bpfleakd.api.service import (
    BLOCKS_LISTED,
    REPORTS_LISTED,
    STOP_LIMIT_S,
    MatchList,
    ProcessList,
    ReportList,
    SupervisedList,
    WatchedList,
)
from bpfleakd.errors import AccessDenied, BpfleakdError, DaemonUnreachable, by_code
from bpfleakd.model.address_space import AddressSpaceReport
from bpfleakd.model.blocks import BlocksReport
from bpfleakd.model.daemon import DaemonStats
from bpfleakd.model.difference import DiffReport
from bpfleakd.model.groups import GroupedReport, GroupKey
from bpfleakd.model.history import StoredHistory
from bpfleakd.model.process import ProcessRow, ProcessSelection, TracingMode
from bpfleakd.model.report import HeapProfile, LeakReport, SortKey, StoredReport, StoredReportEntry
from bpfleakd.model.runtimes.managed import TypesPrice, TypesReport
from bpfleakd.model.runtimes.requested import HeapSample, HeapSamplePrice, NamesReport
from bpfleakd.model.runtimes.survivors import SurvivorsPrice, SurvivorsReport
from bpfleakd.model.scan import ScanReport
from bpfleakd.model.supervision import SupervisedProcess
from bpfleakd.model.watching import WatchedProcess
from bpfleakd.paths import DEFAULT_SOCKET_PATH

_START_IT = "start it: `systemctl start bpfleakd`, or `bpfleakd` in a terminal"
_SEE_LOG = "see its log: journalctl -u bpfleakd"
_SAME_VERSION = "check that bpfleakd and bpfleakctl have the same version"

# Attaching reads symbols and unwind tables, and may have to compile the programs first.
_ATTACH_TIMEOUT_S = 60.0
# A scan reads all memory of a process, 1 GB in some seconds.
_SCAN_TIMEOUT_S = 600.0

_Answer = TypeVar("_Answer")


class _Failure(msgspec.Struct):
    code: str
    message: str
    hint: str = ""


class _FailureBody(msgspec.Struct):
    error: _Failure


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class DaemonClient:
    """The daemon behind `socket_path`. Each call opens a new connection.

    Every method raises DaemonUnreachable, AccessDenied, or the daemon's error.
    """

    def __init__(self, socket_path: Path = DEFAULT_SOCKET_PATH, *, timeout_s: float = 30.0) -> None:
        self._path = socket_path
        self._timeout_s = timeout_s

    def attach(
        self, pid: int, mode: TracingMode | None = None, *, enable_profile: bool = False
    ) -> ProcessRow:
        """Start tracing a process, in one of ATTACH_MODES; None: the daemon chooses.

        `enable_profile` is as in Service.attach.
        """
        query = _query(mode=mode, enable_profile=enable_profile)
        return self._request("POST", f"/v1/processes/{pid}{query}", ProcessRow, _ATTACH_TIMEOUT_S)

    def detach(self, pid: int) -> ProcessRow:
        """Stop tracing a process and return its last figures."""
        return self._request("DELETE", f"/v1/processes/{pid}", ProcessRow)

    def processes(self) -> tuple[ProcessRow, ...]:
        """Return every traced process."""
        return self._request("GET", "/v1/processes", ProcessList).processes

    def watched(self) -> tuple[WatchedProcess, ...]:
        """Every watched process, the growing ones first."""
        return self._request("GET", "/v1/watched", WatchedList).watched

    def supervised(self) -> tuple[SupervisedProcess, ...]:
        """Return every process of this host, with the policy's decision."""
        return self._request("GET", "/v1/supervised", SupervisedList).supervised

    def matching(self, selection: ProcessSelection) -> tuple[int, ...]:
        """The processes that match, without this one."""
        query = _query(name=selection.name, unit=selection.unit, container=selection.container)
        return self._request("GET", f"/v1/matching{query}", MatchList).pids

    def report(
        self,
        pid: int,
        *,
        limit: int | None = None,
        sort: SortKey = SortKey.VERDICT,
        suppress: bool = True,
    ) -> LeakReport:
        """The largest `limit` call sites of a process (all of them for None).

        Here and below `suppress` leaves out suppressed call sites.
        """
        query = _query(sort=sort, limit=limit, suppress=suppress)
        return self._request("GET", f"/v1/processes/{pid}/sites{query}", LeakReport)

    def groups(
        self,
        pid: int,
        *,
        by: GroupKey,
        limit: int | None = None,
        sort: SortKey = SortKey.VERDICT,
        suppress: bool = True,
    ) -> GroupedReport:
        """Return the largest `limit` groups (all for None) of all call sites of a process."""
        query = _query(group=by, sort=sort, limit=limit, suppress=suppress)
        return self._request("GET", f"/v1/processes/{pid}/sites{query}", GroupedReport)

    def blocks(
        self,
        pid: int,
        *,
        site: str | None = None,
        older_than_s: float = 0.0,
        limit: int = BLOCKS_LISTED,
        suppress: bool = True,
    ) -> BlocksReport:
        """Outstanding blocks of one call site of a process, or of all."""
        query = _query(older_than_s=older_than_s, limit=limit, site=site, suppress=suppress)
        return self._request("GET", f"/v1/processes/{pid}/blocks{query}", BlocksReport)

    def profile(self, pid: int) -> HeapProfile:
        """Return all call sites of a process, and the code that it maps."""
        return self._request("GET", f"/v1/processes/{pid}/profile", HeapProfile)

    def scan(
        self,
        pid: int,
        *,
        older_than_s: float,
        stop: bool = True,
        stop_limit_s: float = STOP_LIMIT_S,
        limit: int = 0,
    ) -> ScanReport:
        """Search a process for blocks that nothing points to, and return at most `limit` of them."""
        query = _query(older_than_s=older_than_s, stop=stop, stop_limit_s=stop_limit_s, limit=limit)
        return self._request("POST", f"/v1/processes/{pid}/scan{query}", ScanReport, _SCAN_TIMEOUT_S)

    def types_price(self, pid: int) -> TypesPrice:
        """How long counting objects by type would stop a process."""
        return self._request("GET", f"/v1/processes/{pid}/types", TypesPrice)

    def types(self, pid: int, *, stop: bool = True) -> TypesReport:
        """Count the objects of a managed heap by type; this stops the process if it may `stop`."""
        query = _query(stop=stop)
        return self._request("POST", f"/v1/processes/{pid}/types{query}", TypesReport, _SCAN_TIMEOUT_S)

    def names(self, pid: int) -> NamesReport:
        """Return which frames of a process' call sites have names."""
        return self._request("GET", f"/v1/processes/{pid}/names", NamesReport)

    def request_names(self, pid: int) -> NamesReport:
        """Make the runtime of a process write names, and return which frames have names now."""
        return self._request("POST", f"/v1/processes/{pid}/names", NamesReport, _ATTACH_TIMEOUT_S)

    def heap_sample_price(self, pid: int) -> HeapSamplePrice:
        """The cost of sampling a process' heap through its inspector."""
        return self._request("GET", f"/v1/processes/{pid}/heap-sample", HeapSamplePrice)

    def heap_sample(self, pid: int, *, sample_s: float) -> HeapSample:
        """Sample a process' heap for `sample_s` through its inspector, which is open meanwhile."""
        query = _query(sample_s=sample_s)
        return self._request("POST", f"/v1/processes/{pid}/heap-sample{query}", HeapSample, _SCAN_TIMEOUT_S)

    def survivors_price(self, pid: int) -> SurvivorsPrice:
        """The cost of sampling the allocators of retained objects in a managed heap."""
        return self._request("GET", f"/v1/processes/{pid}/survivors", SurvivorsPrice)

    def survivors(self, pid: int, *, sample_s: float) -> SurvivorsReport:
        """Let the runtime of a process sample the allocators of retained objects for `sample_s`."""
        target = f"/v1/processes/{pid}/survivors{_query(sample_s=sample_s)}"
        return self._request("POST", target, SurvivorsReport, _SCAN_TIMEOUT_S)

    def history(self, pid: int, *, limit: int | None = None) -> StoredHistory:
        """The input of the verdicts on the `limit` first call sites (None: all)."""
        return self._request("GET", f"/v1/processes/{pid}/history{_query(limit=limit)}", StoredHistory)

    def course(self, pid: int, site: str) -> StoredHistory:
        """The live memory of one call site over time: its history without survivors."""
        query = _query(site=site, survivors=False)
        return self._request("GET", f"/v1/processes/{pid}/history{query}", StoredHistory)

    def compare(self, pid: int, *, from_ago_s: float | None, to_ago_s: float = 0.0) -> DiffReport:
        """The changes of a process between two times, in seconds ago (None: since its attach)."""
        query = _query(from_s=from_ago_s, to_s=to_ago_s)
        return self._request("GET", f"/v1/processes/{pid}/diff{query}", DiffReport)

    def address_space(self, pid: int) -> AddressSpaceReport:
        """The memory of a process by use."""
        return self._request("GET", f"/v1/processes/{pid}/maps", AddressSpaceReport)

    def reports(
        self, pid: int | None = None, *, limit: int = REPORTS_LISTED
    ) -> tuple[StoredReportEntry, ...]:
        """The newest stored reports, of a pid or of all."""
        return self._request("GET", f"/v1/reports{_query(limit=limit, pid=pid)}", ReportList).reports

    def stored_report(self, number: int) -> StoredReport:
        """A stored report."""
        return self._request("GET", f"/v1/reports/{number}", StoredReport)

    def stats(self) -> DaemonStats:
        """Return the daemon's own figures."""
        return self._request("GET", "/v1/status", DaemonStats)

    def _request(self, method: str, target: str, kind: type[_Answer], timeout_s: float = 0.0) -> _Answer:
        status, body = self._exchange(method, target, max(self._timeout_s, timeout_s))
        try:
            if status >= 400:
                failure = msgspec.json.decode(body, type=_FailureBody).error
                raise by_code(failure.code)(failure.message, failure.hint)
            return msgspec.json.decode(body, type=kind)
        except msgspec.MsgspecError as error:
            words = f"the answer of the daemon on {self._path} (status {status}) cannot be parsed: {error}"
            raise BpfleakdError(words, _SAME_VERSION) from error

    def _exchange(self, method: str, target: str, timeout_s: float) -> tuple[int, bytes]:
        connection = _UnixConnection(self._path, timeout_s)
        try:
            # A daemon that refuses a connection answers and closes it before it reads the request.
            with contextlib.suppress(BrokenPipeError):
                connection.request(method, target)
            response = connection.getresponse()
            return response.status, response.read()
        except (FileNotFoundError, NotADirectoryError) as error:
            raise DaemonUnreachable(f"no daemon: there is no {self._path}", _START_IT) from error
        except ConnectionRefusedError as error:
            raise DaemonUnreachable(f"no daemon answers on {self._path}", _START_IT) from error
        except PermissionError as error:
            words = f"no access to the daemon's socket {self._path}"
            raise AccessDenied(words, _way_in(self._path)) from error
        except TimeoutError as error:
            words = f"the daemon on {self._path} did not answer within {timeout_s:g} s"
            raise DaemonUnreachable(words, _SEE_LOG) from error
        except (http.client.HTTPException, ConnectionError) as error:
            words = f"the daemon on {self._path} closed the connection without an answer"
            raise DaemonUnreachable(words, _SEE_LOG) from error
        except OSError as error:
            words = f"cannot connect to {self._path}: {error.strerror or error}"
            raise DaemonUnreachable(words, _START_IT) from error
        finally:
            connection.close()


def _query(**values: str | float | None) -> str:
    """The query of a request: `?name=value&…`, without the values that are None."""
    given = {name: _parameter(value) for name, value in values.items() if value is not None}
    return f"?{urlencode(given)}" if given else ""


def _parameter(value: str | float) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.6f}" if isinstance(value, float) else str(value)


def _way_in(path: Path) -> str:
    """How a user gets access to the socket."""
    try:
        status = path.stat()
        group = grp.getgrgid(status.st_gid).gr_name
    except (OSError, KeyError):
        return "run as root"
    if status.st_gid == 0:
        return "run as root: no group may use the socket (socket_group in the configuration)"
    return f"run as root, or join the socket's group: `usermod -aG {group} USER`, then log in again"
