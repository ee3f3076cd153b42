"""The HTTP application: routes, parameters, errors. It knows nothing of sockets.

    GET    /v1/status                       DaemonStats
    GET    /v1/processes                    {"processes": [TracedProcess, …]}
    GET    /v1/watched                      {"watched": [WatchedProcess, …]}
    GET    /v1/supervised                   {"supervised": [SupervisedProcess, …]}
    GET    /v1/matching                     {"pids": [N, …]}; ?name=PATTERN&unit=PATTERN&container=ID
    POST   /v1/processes/{pid}              attach → TracedProcess; ?mode=exact|sampled|auto
    DELETE /v1/processes/{pid}              detach → TracedProcess
    GET    /v1/processes/{pid}/sites        LeakReport; ?limit=K&sort=verdict|growth|live|count&suppress=false
                                            GroupedReport with &group=function|module|thread|stack
    GET    /v1/processes/{pid}/blocks       BlocksReport; ?site=S&older_than_s=T&limit=K&suppress=false
    GET    /v1/processes/{pid}/history      StoredHistory; ?limit=K or ?site=S, &survivors=false
    GET    /v1/processes/{pid}/diff         DiffReport; ?from_s=T&to_s=T, both ago
    GET    /v1/processes/{pid}/maps         AddressSpaceReport
    GET    /v1/reports                      {"reports": [StoredReportEntry, …]}; ?pid=N&limit=K
    GET    /v1/reports/{number}             StoredReport
    GET    /v1/processes/{pid}/profile      HeapProfile
    GET    /debug/pprof/heap?pid=N          gzipped pprof; without a pid of the one process that is traced
    GET    /v1/processes/{pid}/types        TypesPrice
    POST   /v1/processes/{pid}/types        TypesReport; ?stop=true|false
    GET    /v1/processes/{pid}/names        NamesReport: what has no name
    POST   /v1/processes/{pid}/names        NamesReport, after its runtime has written names down
    GET    /v1/processes/{pid}/heap-sample  HeapSamplePrice
    POST   /v1/processes/{pid}/heap-sample  HeapSample; ?sample_s=T
    POST   /v1/processes/{pid}/scan         ScanReport; ?older_than_s=T&stop=true|false&stop_limit_s=T&limit=K
    GET    /v1/processes/{pid}/flamegraph   a tree of frames; ?value=live-bytes|live-count|growth|allocated-…
    GET    /v1/targets                      what to scrape profiles of, for Prometheus' HTTP service discovery
    GET    /metrics                         Prometheus or OpenMetrics text
    GET    /, /assets/…, /flamegraph        the page for people (api/pages.py)

Over TCP nothing has addresses, unless the configuration says so (metrics.details): blocks, maps, profile,
pprof and targets are refused, and frames have the address 0.

An error is {"error": {"code", "message", "hint"}} with a fitting status. docs/json.md has the fields.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import ParamSpec, TypeVar

import structlog

from bpfleakd import errors
from bpfleakd.api.answers import error_answer, json_answer, status_of
from bpfleakd.api.gates import local_names_only_gate, read_only_gate
from bpfleakd.api.messages import Handler, Request, Response
from bpfleakd.api.pages import asset_response, flamegraph_response, page_response
from bpfleakd.api.parameters import (
    PID_MAX,
    BadRequest,
    choice,
    limit_of,
    only_parameters,
    pattern,
    pid_of,
    seconds,
    site_of,
    whole_number,
    yes_or_no,
)
from bpfleakd.api.redaction import Report, without_addresses
from bpfleakd.api.requested import Requested, log_who_asked
from bpfleakd.api.routing import Route, Router
from bpfleakd.api.scrape_targets import scrape_targets
from bpfleakd.api.service import (
    ATTACH_MODES,
    BLOCKS_LISTED,
    BLOCKS_LISTED_MAX,
    REPORTS_LISTED,
    REPORTS_LISTED_MAX,
    MatchList,
    ProcessList,
    ReportList,
    Service,
    SupervisedList,
    WatchedList,
)
from bpfleakd.export.flamegraph import flamegraph_html, flamegraph_json
from bpfleakd.export.pprof import pprof_profile
from bpfleakd.export.stack_values import StackValue
from bpfleakd.model.groups import GroupKey
from bpfleakd.model.process import ProcessSelection, ProcessState, TracingMode
from bpfleakd.model.report import LeakReport, SortKey

# Takes the request's Accept header, returns the body and its content type.
Exposition = Callable[[str], tuple[bytes, str]]

P = ParamSpec("P")
R = TypeVar("R")

log = structlog.get_logger()


def create_app(
    service: Service,
    exposition: Exposition,
    *,
    read_only: bool,
    details: bool = True,
    local_names_only: bool = False,
) -> Handler:
    """The application.

    `read_only` refuses every method but GET; `local_names_only` refuses host names that are not local.
    Without `details` no answer has addresses: of blocks, of code, of frames.
    """
    api = _Api(service, exposition, details=details)
    routes = [
        _route("/v1/status", "GET", api.status),
        _route("/v1/reports", "GET", api.reports),
        _route("/v1/reports/{number}", "GET", api.stored_report),
        _route("/v1/processes", "GET", api.processes),
        _route("/v1/watched", "GET", api.watched),
        _route("/v1/supervised", "GET", api.supervised),
        _route("/v1/processes/{pid}/sites", "GET", api.sites),
        _route("/v1/processes/{pid}/blocks", "GET", api.blocks if details else _no_details),
        _route("/v1/processes/{pid}/history", "GET", api.history),
        _route("/v1/processes/{pid}/diff", "GET", api.diff),
        _route("/v1/processes/{pid}/maps", "GET", api.maps if details else _no_details),
        _route("/v1/processes/{pid}/profile", "GET", api.profile if details else _no_details),
        _route("/debug/pprof/heap", "GET", api.pprof if details else _no_details),
        _route("/v1/targets", "GET", api.targets if details else _no_details),
        _route("/v1/processes/{pid}/flamegraph", "GET", api.flamegraph),
        _route("/metrics", "GET", api.metrics),
        _route("/", "GET", api.page),
        _route("/assets/{name:path}", "GET", api.asset),
        _route("/flamegraph", "GET", api.flamegraph_page),
    ]
    if not read_only:
        routes.append(_route("/v1/matching", "GET", api.matching))
        routes.append(_route("/v1/processes/{pid}", "POST", api.attach))
        routes.append(_route("/v1/processes/{pid}", "DELETE", api.detach))
        requested = Requested(service, api.rendered)
        for name, method, handler in (
            ("scan", "POST", requested.scan),
            ("types", "GET", requested.types_price),
            ("types", "POST", requested.types),
            ("names", "GET", requested.names),
            ("names", "POST", requested.request_names),
            ("heap-sample", "GET", requested.heap_sample_price),
            ("heap-sample", "POST", requested.heap_sample),
            ("survivors", "GET", requested.survivors_price),
            ("survivors", "POST", requested.survivors),
        ):
            routes.append(_route(f"/v1/processes/{{pid}}/{name}", method, handler))
    application: Handler = Router(routes)
    if read_only:
        application = read_only_gate(application)
    return local_names_only_gate(application) if local_names_only else application


class _Api:
    """The handlers: they turn parameters into an answer of the service."""

    def __init__(self, service: Service, exposition: Exposition, *, details: bool) -> None:
        self._service = service
        self._exposition = exposition
        self._details = details
        self._rendering = asyncio.Lock()

    def _redacted(self, report: Report) -> Report:
        return report if self._details else without_addresses(report)

    async def status(self, request: Request) -> Response:
        only_parameters(request)
        return json_answer(await self._service.stats())

    async def processes(self, request: Request) -> Response:
        only_parameters(request)
        return json_answer(ProcessList(await self._service.processes()))

    async def watched(self, request: Request) -> Response:
        only_parameters(request)
        return json_answer(WatchedList(await self._service.watched()))

    async def supervised(self, request: Request) -> Response:
        only_parameters(request)
        return json_answer(SupervisedList(await self._service.supervised()))

    async def matching(self, request: Request) -> Response:
        only_parameters(request, "name", "unit", "container")
        asked = {name: pattern(request, name) for name in ("name", "unit", "container")}
        if not any(asked.values()):
            raise BadRequest("no process was named", "give name, unit or container")
        asking_pid = request.peer.pid if request.peer is not None else 0
        selection = ProcessSelection(**asked)
        return json_answer(MatchList(await self._service.matching(selection, asking_pid=asking_pid)))

    async def attach(self, request: Request) -> Response:
        only_parameters(request, "mode", "enable_profile")
        pid, mode = pid_of(request), None
        if "mode" in request.query:
            mode = choice(request, "mode", TracingMode.EXACT, ATTACH_MODES)
        enable_profile = yes_or_no(request, "enable_profile", otherwise=False)
        log_who_asked("attach", pid, request)
        row = await self._service.attach(pid, mode, enable_profile=enable_profile)
        return json_answer(row, HTTPStatus.CREATED)

    async def detach(self, request: Request) -> Response:
        only_parameters(request)
        pid = pid_of(request)
        log_who_asked("detach", pid, request)
        return json_answer(await self._service.detach(pid))

    async def sites(self, request: Request) -> Response:
        only_parameters(request, "limit", "sort", "group", "suppress")
        pid, limit, sort = pid_of(request), limit_of(request), choice(request, "sort", SortKey.VERDICT)
        by, suppress = choice(request, "group", GroupKey.SITE), yes_or_no(request, "suppress", True)
        if by is GroupKey.SITE:
            report = await self._service.report(pid, limit=limit, sort=sort, suppress=suppress)
            return await self.rendered(lambda: json_answer(self._redacted(report)))
        groups = await self._service.groups(pid, by=by, limit=limit, sort=sort, suppress=suppress)
        return await self.rendered(lambda: json_answer(self._redacted(groups)))

    async def blocks(self, request: Request) -> Response:
        only_parameters(request, "site", "older_than_s", "limit", "suppress")
        blocks = await self._service.blocks(
            pid_of(request),
            site=site_of(request),
            older_than_s=seconds(request, "older_than_s"),
            limit=limit_of(request, BLOCKS_LISTED_MAX) or BLOCKS_LISTED,
            suppress=yes_or_no(request, "suppress", True),
        )
        return await self.rendered(json_answer, blocks)

    async def history(self, request: Request) -> Response:
        only_parameters(request, "limit", "site", "survivors")
        history = await self._service.history(
            pid_of(request),
            limit=limit_of(request),
            site=site_of(request),
            survivors=yes_or_no(request, "survivors", True),
        )
        return await self.rendered(json_answer, history)

    async def diff(self, request: Request) -> Response:
        only_parameters(request, "from_s", "to_s")
        from_ago_s = seconds(request, "from_s") if "from_s" in request.query else None
        to_ago_s = seconds(request, "to_s")
        found = await self._service.compare(pid_of(request), from_ago_s=from_ago_s, to_ago_s=to_ago_s)
        return await self.rendered(lambda: json_answer(self._redacted(found)))

    async def maps(self, request: Request) -> Response:
        only_parameters(request)
        return json_answer(await self._service.address_space(pid_of(request)))

    async def reports(self, request: Request) -> Response:
        only_parameters(request, "pid", "limit")
        text = request.query.get("pid")
        pid = None if text is None else whole_number("pid", text, 1, PID_MAX)
        limit = limit_of(request, REPORTS_LISTED_MAX) or REPORTS_LISTED
        return json_answer(ReportList(await self._service.reports(pid, limit=limit)))

    async def stored_report(self, request: Request) -> Response:
        only_parameters(request)
        number = whole_number("a report", request.path_params["number"], 1, 2**53)
        stored = await self._service.stored_report(number)
        return await self.rendered(lambda: json_answer(self._redacted(stored)))

    async def profile(self, request: Request) -> Response:
        only_parameters(request)
        return await self.rendered(json_answer, await self._service.profile(pid_of(request)))

    async def pprof(self, request: Request) -> Response:
        # Go's own handlers have more parameters, which scrapers may send.
        text = request.query.get("pid", "")
        pid = whole_number("pid", text, 1, PID_MAX) if text else await self._only_pid()
        profile = await self.rendered(pprof_profile, await self._service.profile(pid))
        name = f'attachment; filename="heap-{pid}.pb.gz"'
        headers = {"content-type": "application/octet-stream", "content-disposition": name}
        return Response(profile, headers=headers)

    async def targets(self, request: Request) -> Response:
        # The address under which the scraper has just reached the daemon.
        return json_answer(
            scrape_targets(await self._service.processes(), request.headers.get("host", "localhost"))
        )

    async def flamegraph(self, request: Request) -> Response:
        only_parameters(request, "value")
        value = choice(request, "value", StackValue.LIVE_BYTES)
        report = await self._all_sites(pid_of(request))
        return await self.rendered(lambda: json_answer(flamegraph_json(self._redacted(report), value)))

    async def flamegraph_page(self, request: Request) -> Response:
        only_parameters(request, "pid", "value")
        pid = whole_number("pid", request.query.get("pid", ""), 1, PID_MAX)
        value = choice(request, "value", StackValue.LIVE_BYTES)
        report = await self._all_sites(pid)
        return await self.rendered(
            lambda: flamegraph_response(flamegraph_html(self._redacted(report), value))
        )

    async def _all_sites(self, pid: int) -> LeakReport:
        return await self._service.report(pid, limit=None, sort=SortKey.LIVE)

    async def rendered(self, render: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Make a large answer in another thread: the loop feeds the watchdog and answers others."""
        # One at a time: such an answer takes as much memory as its input.
        async with self._rendering:
            return await asyncio.to_thread(render, *args, **kwargs)

    async def page(self, request: Request) -> Response:
        return page_response()

    async def asset(self, request: Request) -> Response:
        response = asset_response(request.path_params["name"])
        return response or error_answer(HTTPStatus.NOT_FOUND, "not-found", f"there is no {request.path}")

    async def _only_pid(self) -> int:
        processes = [row.process for row in await self._service.processes()]
        traced = [process.pid for process in processes if process.state is ProcessState.TRACED]
        if len(traced) != 1:
            raise BadRequest(
                f"{len(traced)} processes are traced: name one with pid=N", "/debug/pprof/heap?pid=N"
            )
        return traced[0]

    async def metrics(self, request: Request) -> Response:
        body, content_type = self._exposition(request.headers.get("accept", ""))
        return Response(body, headers={"content-type": content_type})


def _route(path: str, method: str, handler: Handler) -> Route:
    async def endpoint(request: Request) -> Response:
        try:
            return await handler(request)
        except errors.BpfleakdError as error:
            if method != "GET":
                # The log has the request and its user; it needs the outcome, too.
                log.info("api.not-done", path=request.path, reason=error.message)
            return error_answer(status_of(error), error.code, error.message, error.hint)
        except Exception:
            # The client gets no traceback, since it contains internal paths and values.
            log.exception("api.failed", method=request.method, path=request.path)
            return error_answer(
                HTTPStatus.INTERNAL_SERVER_ERROR,
                "internal",
                "internal error in the daemon",
                "details are in its log: journalctl -u bpfleakd",
            )

    return Route(path, method, endpoint)


async def _no_details(request: Request) -> Response:
    raise errors.AccessDenied(
        f"{request.path} contains process addresses, which this TCP address does not serve",
        "use bpfleakctl, or the daemon's unix socket; or set metrics.details: true, and restart the daemon",
    )
