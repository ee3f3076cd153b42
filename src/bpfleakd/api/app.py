"""The HTTP application: routes, parameters, errors. It knows nothing of sockets.

    GET    /v1/status                       DaemonStats
    GET    /v1/processes                    {"processes": [TracedProcess, …]}
    GET    /v1/watched                      {"watched": [WatchedProcess, …]}
    GET    /v1/supervised                   {"supervised": [SupervisedProcess, …]}
    POST   /v1/processes/{pid}              attach → TracedProcess; ?mode=exact|sampled|auto
    DELETE /v1/processes/{pid}              detach → TracedProcess
    GET    /v1/processes/{pid}/sites        LeakReport; ?limit=K&sort=verdict|growth|live|count&suppress=false
                                            GroupedReport with &group=function|module|thread|stack
    GET    /v1/processes/{pid}/blocks       BlocksReport; ?site=S&older_than_s=T&limit=K&suppress=false
    GET    /v1/processes/{pid}/history      SavedHistory; ?limit=K
    GET    /v1/processes/{pid}/diff         DiffReport; ?from_s=T&to_s=T, both ago
    GET    /v1/processes/{pid}/maps         AddressSpaceReport
    GET    /v1/reports                      {"reports": [KeptReport, …]}; ?pid=N&limit=K
    GET    /v1/reports/{number}             SavedReport
    GET    /v1/processes/{pid}/profile      HeapProfile
    GET    /debug/pprof/heap?pid=N          gzipped pprof; without a pid of the one process that is traced
    POST   /v1/processes/{pid}/scan         ScanReport; ?older_than_s=T&stop=true|false&stop_limit_s=T&limit=K
    GET    /v1/processes/{pid}/flamegraph   a tree of frames; ?value=live-bytes|live-count|growth|allocated-…
    GET    /metrics                         Prometheus or OpenMetrics text
    GET    /, /assets/…, /flamegraph        the page for people (api/pages.py)

An error is {"error": {"code", "message", "hint"}} with a fitting status. docs/json.md has the fields.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from typing import TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from bpfleakd import errors
from bpfleakd.api.pages import asset_response, flamegraph_response, page_response
from bpfleakd.api.service import (
    ATTACH_MODES,
    BLOCKS_LISTED,
    BLOCKS_LISTED_MAX,
    REPORTS_LISTED,
    REPORTS_LISTED_MAX,
    STOP_LIMIT_MAX_S,
    STOP_LIMIT_S,
    ProcessList,
    ReportList,
    Service,
    SupervisedList,
    WatchedList,
)
from bpfleakd.export.flamegraph import flamegraph_html, flamegraph_json
from bpfleakd.export.pprof import pprof_profile
from bpfleakd.export.stack_values import StackValue
from bpfleakd.logs import get_logger
from bpfleakd.model.groups import GroupKey
from bpfleakd.model.process import ProcessState, TracingMode
from bpfleakd.model.report import LeakReport, SortKey
from bpfleakd.printable import printable, without_surrogates

__all__ = ["Exposition", "create_app"]

# Takes the request's Accept header, returns the body and its content type.
Exposition = Callable[[str], tuple[bytes, str]]

_Handler = Callable[[Request], Awaitable[Response]]
_Choice = TypeVar("_Choice", GroupKey, SortKey, StackValue, TracingMode)

_PID_MAX = 4_194_304  # PID_MAX_LIMIT of a 64-bit kernel
_READING = ("GET", "HEAD")

# A Host header with an address, or a name that is always this machine's (RFC 6761), and maybe a port.
_LOCAL_NAME = re.compile(r"(\[[0-9a-f:.]+\]|[0-9.]+|([a-z0-9-]+\.)*localhost\.?)(:[0-9]+)?", re.IGNORECASE)

# The status of an error class holds for its subclasses, unless they have their own.
_STATUS: dict[type[errors.BpfleakdError], HTTPStatus] = {
    errors.BpfleakdError: HTTPStatus.INTERNAL_SERVER_ERROR,
    errors.DaemonUnreachable: HTTPStatus.SERVICE_UNAVAILABLE,  # it is still starting
    errors.AccessDenied: HTTPStatus.FORBIDDEN,
    errors.TargetError: HTTPStatus.UNPROCESSABLE_ENTITY,
    errors.NoSuchProcess: HTTPStatus.NOT_FOUND,
    errors.NotAttached: HTTPStatus.NOT_FOUND,
    errors.NoSuchSite: HTTPStatus.NOT_FOUND,
    errors.NoSuchTime: HTTPStatus.NOT_FOUND,
    errors.NoSuchReport: HTTPStatus.NOT_FOUND,
    errors.AlreadyRunning: HTTPStatus.CONFLICT,
    errors.AlreadyAttached: HTTPStatus.CONFLICT,
    errors.KernelUnsupported: HTTPStatus.NOT_IMPLEMENTED,
    errors.CapacityError: HTTPStatus.SERVICE_UNAVAILABLE,
}

log = get_logger()


class _BadRequest(errors.BpfleakdError):
    """A parameter that cannot be used."""

    code = "bad-request"


def create_app(
    service: Service, exposition: Exposition, *, read_only: bool, local_names_only: bool = False
) -> Starlette:
    """Return the application.

    `read_only` refuses every method but GET; `local_names_only` whoever knows us by a name of the world.
    """
    api = _Api(service, exposition)
    routes = [
        _route("/v1/status", "GET", api.status),
        _route("/v1/reports", "GET", api.reports),
        _route("/v1/reports/{number}", "GET", api.kept_report),
        _route("/v1/processes", "GET", api.processes),
        _route("/v1/watched", "GET", api.watched),
        _route("/v1/supervised", "GET", api.supervised),
        _route("/v1/processes/{pid}/sites", "GET", api.sites),
        _route("/v1/processes/{pid}/blocks", "GET", api.blocks),
        _route("/v1/processes/{pid}/history", "GET", api.history),
        _route("/v1/processes/{pid}/diff", "GET", api.diff),
        _route("/v1/processes/{pid}/maps", "GET", api.maps),
        _route("/v1/processes/{pid}/profile", "GET", api.profile),
        _route("/debug/pprof/heap", "GET", api.pprof),
        _route("/v1/processes/{pid}/flamegraph", "GET", api.flamegraph),
        _route("/metrics", "GET", api.metrics),
        _route("/", "GET", api.page),
        _route("/assets/{name:path}", "GET", api.asset),
        _route("/flamegraph", "GET", api.flamegraph_page),
    ]
    if not read_only:
        routes.append(_route("/v1/processes/{pid}", "POST", api.attach))
        routes.append(_route("/v1/processes/{pid}", "DELETE", api.detach))
        # It stops the process for a moment.
        routes.append(_route("/v1/processes/{pid}/scan", "POST", api.scan))
    return Starlette(
        routes=routes,
        middleware=[
            *([Middleware(_LocalNamesOnly)] if local_names_only else []),
            *([Middleware(_ReadOnly)] if read_only else []),
        ],
        exception_handlers={HTTPException: _routing_error},
    )


class _Api:
    """The handlers: parameters in, an answer of the service out."""

    def __init__(self, service: Service, exposition: Exposition) -> None:
        self._service = service
        self._exposition = exposition

    async def status(self, request: Request) -> Response:
        _only_parameters(request)
        return _json(await self._service.stats())

    async def processes(self, request: Request) -> Response:
        _only_parameters(request)
        return _json(ProcessList(await self._service.processes()))

    async def watched(self, request: Request) -> Response:
        _only_parameters(request)
        return _json(WatchedList(await self._service.watched()))

    async def supervised(self, request: Request) -> Response:
        _only_parameters(request)
        return _json(SupervisedList(await self._service.supervised()))

    async def attach(self, request: Request) -> Response:
        _only_parameters(request, "mode")
        pid, mode = _pid(request), _choice(request, "mode", TracingMode.EXACT, ATTACH_MODES)
        _log_who_asked("attach", pid, request)
        return _json(await self._service.attach(pid, mode), HTTPStatus.CREATED)

    async def detach(self, request: Request) -> Response:
        _only_parameters(request)
        pid = _pid(request)
        _log_who_asked("detach", pid, request)
        return _json(await self._service.detach(pid))

    async def sites(self, request: Request) -> Response:
        _only_parameters(request, "limit", "sort", "group", "suppress")
        pid, limit, sort = _pid(request), _limit(request), _choice(request, "sort", SortKey.VERDICT)
        by, suppress = _choice(request, "group", GroupKey.SITE), _yes_or_no(request, "suppress", True)
        if by is GroupKey.SITE:
            return _json(await self._service.report(pid, limit=limit, sort=sort, suppress=suppress))
        return _json(await self._service.groups(pid, by=by, limit=limit, sort=sort, suppress=suppress))

    async def blocks(self, request: Request) -> Response:
        _only_parameters(request, "site", "older_than_s", "limit", "suppress")
        return _json(
            await self._service.blocks(
                _pid(request),
                site=_site(request),
                older_than_s=_seconds(request, "older_than_s"),
                limit=_limit(request, BLOCKS_LISTED_MAX) or BLOCKS_LISTED,
                suppress=_yes_or_no(request, "suppress", True),
            )
        )

    async def scan(self, request: Request) -> Response:
        _only_parameters(request, "older_than_s", "stop", "stop_limit_s", "limit")
        return _json(
            await self._service.scan(
                _pid(request),
                older_than_s=_seconds(request, "older_than_s"),
                stop=_yes_or_no(request, "stop", True),
                stop_limit_s=_seconds(request, "stop_limit_s", STOP_LIMIT_S, STOP_LIMIT_MAX_S),
                limit=_limit(request, BLOCKS_LISTED_MAX, lowest=0) or 0,
            )
        )

    async def history(self, request: Request) -> Response:
        _only_parameters(request, "limit")
        return _json(await self._service.history(_pid(request), limit=_limit(request)))

    async def diff(self, request: Request) -> Response:
        _only_parameters(request, "from_s", "to_s")
        from_ago_s = _seconds(request, "from_s") if "from_s" in request.query_params else None
        to_ago_s = _seconds(request, "to_s")
        return _json(await self._service.compare(_pid(request), from_ago_s=from_ago_s, to_ago_s=to_ago_s))

    async def maps(self, request: Request) -> Response:
        _only_parameters(request)
        return _json(await self._service.address_space(_pid(request)))

    async def reports(self, request: Request) -> Response:
        _only_parameters(request, "pid", "limit")
        text = request.query_params.get("pid")
        pid = None if text is None else _whole_number("pid", text, 1, _PID_MAX)
        limit = _limit(request, REPORTS_LISTED_MAX) or REPORTS_LISTED
        return _json(ReportList(await self._service.reports(pid, limit=limit)))

    async def kept_report(self, request: Request) -> Response:
        _only_parameters(request)
        number = _whole_number("a report", request.path_params["number"], 1, 2**53)
        return _json(await self._service.kept_report(number))

    async def profile(self, request: Request) -> Response:
        _only_parameters(request)
        return _json(await self._service.profile(_pid(request)))

    async def pprof(self, request: Request) -> Response:
        # Go's own handlers have more parameters, which scrapers send whether they mean anything or not.
        text = request.query_params.get("pid", "")
        pid = _whole_number("pid", text, 1, _PID_MAX) if text else await self._only_pid()
        profile = pprof_profile(await self._service.profile(pid))
        name = f'attachment; filename="heap-{pid}.pb.gz"'
        return Response(profile, media_type="application/octet-stream", headers={"content-disposition": name})

    async def flamegraph(self, request: Request) -> Response:
        _only_parameters(request, "value")
        value = _choice(request, "value", StackValue.LIVE_BYTES)
        return _json(flamegraph_json(await self._all_sites(_pid(request)), value))

    async def flamegraph_page(self, request: Request) -> Response:
        _only_parameters(request, "pid", "value")
        pid = _whole_number("pid", request.query_params.get("pid", ""), 1, _PID_MAX)
        value = _choice(request, "value", StackValue.LIVE_BYTES)
        return flamegraph_response(flamegraph_html(await self._all_sites(pid), value))

    async def _all_sites(self, pid: int) -> LeakReport:
        return await self._service.report(pid, limit=None, sort=SortKey.LIVE)

    async def page(self, request: Request) -> Response:
        return page_response()

    async def asset(self, request: Request) -> Response:
        response = asset_response(request.path_params["name"])
        return response or _error(HTTPStatus.NOT_FOUND, "not-found", f"there is no {request.url.path}")

    async def _only_pid(self) -> int:
        processes = [row.process for row in await self._service.processes()]
        traced = [process.pid for process in processes if process.state is ProcessState.TRACED]
        if len(traced) != 1:
            raise _BadRequest(f"{len(traced)} processes are traced: which one?", "/debug/pprof/heap?pid=N")
        return traced[0]

    async def metrics(self, request: Request) -> Response:
        body, content_type = self._exposition(request.headers.get("accept", ""))
        return Response(body, headers={"content-type": content_type})


def _route(path: str, method: str, handler: _Handler) -> Route:
    async def endpoint(request: Request) -> Response:
        try:
            return await handler(request)
        except errors.BpfleakdError as error:
            return _error(_status_of(error), error.code, error.message, error.hint)
        except Exception:
            # The client gets no traceback: it holds paths and values of ours.
            log.exception("api.failed", method=request.method, path=request.url.path)
            return _error(
                HTTPStatus.INTERNAL_SERVER_ERROR,
                "internal",
                "the daemon failed to answer: a bug in bpfleakd",
                "its log has the details: journalctl -u bpfleakd",
            )

    return Route(path, endpoint, methods=[method])


class _ReadOnly:
    """Refuses, before any routing, whatever could change something."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in _READING:
            await self._app(scope, receive, send)
            return
        refusal = _error(
            HTTPStatus.METHOD_NOT_ALLOWED,
            "method-not-allowed",
            f"{scope['method']} is not possible here: this address only reads",
            "attach and detach go over the daemon's unix socket: bpfleakctl attach PID",
        )
        refusal.headers["allow"] = ", ".join(_READING)
        await refusal(scope, receive, send)


class _LocalNamesOnly:
    """Refuses requests to another host than an address or localhost.

    A web page can have its own name resolve to 127.0.0.1 and then read, from the browser of whoever looks at
    it, what this address answers (DNS rebinding). The browser still sends the page's name.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            host = Headers(scope=scope).get("host", "localhost")
            if not _LOCAL_NAME.fullmatch(host):
                refusal = _error(
                    HTTPStatus.MISDIRECTED_REQUEST,
                    "not-this-host",
                    f"{printable(host)!r} is not a name of this address",
                    "ask by address or as localhost",
                )
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _log_who_asked(what: str, pid: int, request: Request) -> None:
    peer = request.scope.get("state", {}).get("peer")
    if peer is not None:
        log.info(f"api.{what}", pid=pid, by_user=peer.user, by_uid=peer.uid, by_pid=peer.pid)


async def _routing_error(request: Request, error: Exception) -> Response:
    """No such path, or not by this method."""
    assert isinstance(error, HTTPException)
    method, path = request.method, request.url.path
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        response = _error(405, "method-not-allowed", f"{method} is not possible on {path}")
    else:
        response = _error(error.status_code, "not-found", f"there is no {path}", "docs/json.md has the paths")
    response.headers.update(error.headers or {})
    return response


def _only_parameters(request: Request, *known: str) -> None:
    for name in request.query_params:
        if name not in known:
            hint = f"known here: {', '.join(known)}" if known else "this takes none"
            raise _BadRequest(f"unknown parameter {printable(name)!r}", hint)
        if len(request.query_params.getlist(name)) > 1:
            raise _BadRequest(f"parameter {name} is given more than once")


def _pid(request: Request) -> int:
    return _whole_number("a pid", request.path_params["pid"], 1, _PID_MAX)


def _limit(request: Request, highest: int = 1_000_000, *, lowest: int = 1) -> int | None:
    text = request.query_params.get("limit")
    return None if text is None else _whole_number("limit", text, lowest, highest)


def _choice(
    request: Request, name: str, otherwise: _Choice, choices: Sequence[_Choice] | None = None
) -> _Choice:
    possible = tuple(type(otherwise)) if choices is None else choices
    text = request.query_params.get(name, otherwise.value)
    for choice in possible:
        if text == choice.value:
            return choice
    raise _BadRequest(f"{name} is one of {', '.join(possible)}, not {printable(text)!r}")


def _site(request: Request) -> str | None:
    text = request.query_params.get("site")
    if text is None or re.fullmatch("[0-9a-f]{16}", text):
        return text
    raise _BadRequest(f"a site is 16 hexadecimal digits, not {printable(text)!r}")


def _seconds(request: Request, name: str, otherwise: float = 0.0, highest: float = 1e9) -> float:
    text = request.query_params.get(name)
    if text is None:
        return otherwise
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text) and float(text) <= highest:
        return float(text)
    most = "" if highest >= 1e9 else f" up to {highest:g}"
    raise _BadRequest(f"{name} is a number of seconds{most}, not {printable(text)!r}")


def _yes_or_no(request: Request, name: str, otherwise: bool) -> bool:
    text = request.query_params.get(name, str(otherwise).lower())
    if text in ("true", "false"):
        return text == "true"
    raise _BadRequest(f"{name} is true or false, not {printable(text)!r}")


def _whole_number(what: str, text: str, lowest: int, highest: int) -> int:
    digits = text.isascii() and text.isdigit() and len(text) <= len(str(highest))
    if digits and lowest <= int(text) <= highest:
        return int(text)
    raise _BadRequest(f"{what} is a whole number from {lowest} to {highest}, not {printable(text)!r}")


def _status_of(error: errors.BpfleakdError) -> HTTPStatus:
    if isinstance(error, _BadRequest):
        return HTTPStatus.BAD_REQUEST
    return next(_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS)


def _error(status: int, code: str, message: str, hint: str = "") -> Response:
    return _json({"error": {"code": code, "message": message, "hint": hint}}, status)


def _json(answer: object, status: int = HTTPStatus.OK) -> Response:
    try:
        body = msgspec.json.encode(answer)
    except UnicodeEncodeError:
        # A name with bytes that are no UTF-8 (as Python's surrogates); JSON cannot carry them.
        body = msgspec.json.encode(without_surrogates(msgspec.to_builtins(answer)))
    return Response(body, status, {"cache-control": "no-store"}, media_type="application/json")
