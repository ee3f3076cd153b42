"""The HTTP application, called as a server would: no sockets."""

from __future__ import annotations

import asyncio
import io
import json
import re
import threading
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from bpfleakd import errors
from bpfleakd.analysis.diff import compared
from bpfleakd.api import app
from bpfleakd.api.answers import json_answer
from bpfleakd.api.app import create_app
from bpfleakd.api.messages import Handler, request_for
from bpfleakd.api.service import ProcessList
from bpfleakd.config import LogConfig
from bpfleakd.daemon.logs import configure_logging
from bpfleakd.model.groups import GroupKey
from bpfleakd.model.history import StoredHistory
from bpfleakd.model.process import ProcessLabels, ProcessSelection, ProcessState, TracingMode
from bpfleakd.model.report import SortKey, StoredReport, StoredReportEntry
from bpfleakd.model.runtimes.requested import (
    HeapSample,
    HeapSamplePrice,
    NamesReport,
    RequestedNames,
    SampledFunction,
    UnnamedFrames,
)
from bpfleakd.model.runtimes.survivors import Survivor, SurvivorLine, SurvivorsPrice, SurvivorsReport

from ..samples import (
    HOSTILE,
    a_blocks_report,
    a_frame,
    a_group,
    a_grouped_report,
    a_process,
    a_profile,
    a_report,
    a_scan_report,
    a_site,
    a_stack,
    a_supervised_process,
    a_traced_process,
    a_watched_process,
    an_address_space,
    some_stats,
)
from .serving import FakeService, exposition


class Answer:
    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, str]:
        assert self.json.keys() == {"error"}
        assert self.json["error"].keys() == {"code", "message", "hint"}
        return self.json["error"]


def ask(
    service: FakeService,
    method: str,
    target: str,
    *,
    read_only: bool = False,
    details: bool = True,
    accept: str | None = None,
) -> Answer:
    """Send one request through the application."""
    application = create_app(service, exposition, read_only=read_only, details=details)
    return asyncio.run(call(application, method, target, accept))


async def call(application: Handler, method: str, target: str, accept: str | None = None) -> Answer:
    headers = {"host": "localhost"} | ({"accept": accept} if accept else {})
    answer = await application(request_for(method, target, headers))
    return Answer(answer.status, answer.headers, answer.body)


# -- answers -----------------------------------------------------------------------------------------------


def test_status():
    """The daemon's own figures."""
    answer = ask(FakeService(stats=some_stats()), "GET", "/v1/status")
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert answer.json["processes_attached_total"] == 19


def test_supervised():
    """Every process of the host, with the policy's decision and its reason."""
    answer = ask(FakeService(supervised=(a_supervised_process(23),)), "GET", "/v1/supervised")
    (row,) = answer.json["supervised"]
    assert (row["pid"], row["mode"], row["state"], row["rule"]) == (23, "exact", "refused", "rule 2")
    assert row["labels"]["unit"] == "shop.service"


def test_processes():
    """An object that holds the list."""
    answer = ask(FakeService(processes=(a_traced_process(23), a_traced_process(101))), "GET", "/v1/processes")
    assert [row["process"]["pid"] for row in answer.json["processes"]] == [23, 101]
    assert ask(FakeService(processes=()), "GET", "/v1/processes").json == {"processes": []}


def test_watched_processes():
    """An object, so that it may grow."""
    answer = ask(FakeService(watched=(a_watched_process(23),)), "GET", "/v1/watched")
    (row,) = answer.json["watched"]
    assert (answer.status, row["pid"], row["mode"], row["state"]) == (200, 23, "auto", "paused")


def test_attach_in_a_mode():
    """Any mode that a user can choose."""
    service = FakeService(attach=a_traced_process(23))
    assert ask(service, "POST", "/v1/processes/23?mode=auto").status == 201
    assert service.calls == [("attach", 23, TracingMode.AUTO, False)]
    assert ask(service, "POST", "/v1/processes/24?enable_profile=true").status == 201
    assert service.calls[1:] == [("attach", 24, None, True)]
    assert ask(service, "POST", "/v1/processes/24?enable_profile=yes").status == 400
    refused = ask(service, "POST", "/v1/processes/23?mode=watch")
    assert refused.status == 400
    assert refused.json["error"]["message"] == "mode must be one of exact, sampled, auto, inside, not 'watch'"


def test_processes_that_match():
    """At least one criterion is required, over the socket only; the requesting process is excluded."""
    service = FakeService(matching=(23, 101))
    assert ask(service, "GET", "/v1/matching?unit=shop&container=5d41").json == {"pids": [23, 101]}
    assert service.calls == [("matching", ProcessSelection(None, "shop", "5d41"), 0)]
    for query in ("", "?name=", f"?name={'x' * 257}", "?comm=x"):
        assert ask(service, "GET", f"/v1/matching{query}").status == 400
    assert ask(service, "GET", "/v1/matching?name=x", read_only=True).status == 404


def test_attach_and_detach():
    """POST attaches, DELETE detaches; both answer with the process."""
    service = FakeService(attach=a_traced_process(23), detach=a_traced_process(23))
    attached = ask(service, "POST", "/v1/processes/23")
    detached = ask(service, "DELETE", "/v1/processes/23")
    assert service.calls == [("attach", 23, None, False), ("detach", 23)]
    assert (attached.status, detached.status) == (201, 200)
    assert attached.json == detached.json
    assert attached.json["probes"][0]["role"] == "size-first"


@pytest.mark.parametrize(
    ("query", "limit", "sort"),
    [
        ("", None, SortKey.VERDICT),
        ("?limit=7", 7, SortKey.VERDICT),
        ("?sort=growth", None, SortKey.GROWTH),
        ("?sort=live", None, SortKey.LIVE),
        ("?sort=count&limit=1", 1, SortKey.COUNT),
    ],
)
def test_sites(query, limit, sort):
    """The parameters reach the service; without them all call sites by growth."""
    service = FakeService(report=a_report())
    answer = ask(service, "GET", f"/v1/processes/4711/sites{query}")
    assert service.calls == [("report", 4711, limit, sort, True)]
    assert answer.status == 200


def test_the_leak_report_is_the_contract():
    """Field for field as docs/json.md has it."""
    answer = ask(FakeService(report=a_report()), "GET", "/v1/processes/4711/sites").json
    assert list(answer) == [
        *("process", "sites", "losses", "process_verdict", "suppressed", "build_ids"),
        *("managed", "types", "goroutines", "resources", "descriptor_sites"),
        *("descriptor_totals", "oom", "names_pending"),
    ]
    assert {"pid", "comm", "exe", "live_bytes", "live_count", "attached_s", "mode"} <= answer[
        "process"
    ].keys()
    (site,) = answer["sites"]
    assert list(site) == [
        "site",
        "kind",
        "function",
        "module",
        "location",
        "live_bytes",
        "live_count",
        "allocated_bytes",
        "allocated_count",
        "growth_bytes_per_s",
        "oldest_age_s",
        "threads",
        "stack",
        "truncated",
        "temporary_count",
        "peak_live_bytes",
        "verdict",
        "confidence",
        "reason",
        "leak_bytes_per_s",
        "reachable",
        "live_bytes_stderr",
        "live_count_stderr",
        "scanned_age_s",
        "type",
        "types",
        "function_start",
        "called_by",
    ]
    assert site["kind"] == "heap"
    assert site["truncated"] is None
    assert site["threads"] == [{"tid": 4711, "comm": "worker", "live_bytes": 2_000_003, "live_count": 4_201}]
    assert site["stack"][1] == {
        "function": "leak_here",
        "module": "/usr/bin/leaky",
        "offset": 0x1139,
        "location": "/src/leaky.c:23",
        "address": 0x555555555139,
        "kind": "native",
        "inlined": False,
        "function_start": None,
        "is_library": False,
    }


@pytest.mark.parametrize("by", [by for by in GroupKey if by is not GroupKey.SITE])
def test_groups(by):
    """Of all call sites; limit and sort apply to the groups."""
    service = FakeService(groups=a_grouped_report())
    answer = ask(service, "GET", f"/v1/processes/4711/sites?group={by}&limit=7&sort=live")
    assert service.calls == [("groups", 4711, by, 7, SortKey.LIVE, True)]
    assert list(answer.json) == ["process", "groups", "losses", "suppressed"]
    assert list(answer.json["groups"][0]) == [
        "group",
        "live_bytes",
        "live_count",
        "allocated_bytes",
        "allocated_count",
        "growth_bytes_per_s",
        "sites",
        "comm",
        "stack",
        "truncated",
        "live_bytes_stderr",
        "live_count_stderr",
    ]


def test_grouped_by_site_is_the_leak_report():
    """The call sites themselves."""
    service = FakeService(report=a_report())
    assert "sites" in ask(service, "GET", "/v1/processes/4711/sites?group=site").json
    assert service.calls == [("report", 4711, None, SortKey.VERDICT, True)]


@pytest.mark.parametrize(
    ("query", "arguments"),
    [
        ("", (None, 0.0, 1_000)),
        ("?site=5d41402abc4b2a76", ("5d41402abc4b2a76", 0.0, 1_000)),
        ("?older_than_s=61.5&limit=100000", (None, 61.5, 100_000)),
    ],
)
def test_blocks(query, arguments):
    """The parameters reach the service; without them a bounded list of all."""
    service = FakeService(blocks=a_blocks_report())
    answer = ask(service, "GET", f"/v1/processes/4711/blocks{query}")
    assert service.calls == [("blocks", 4711, *arguments, True)]
    assert list(answer.json) == [
        "process",
        "older_than_s",
        "live_bytes",
        "live_count",
        "sites",
        "left_out_sites",
        "left_out_count",
        "losses",
        "suppressed",
    ]
    (site,) = answer.json["sites"]
    assert site["caller"]["function"] == "leak_here"
    assert site["blocks"][0] == {
        "address": 0x5555_5575_92A0,
        "size_bytes": 1_048_576,
        "age_s": 193.0,
        "tid": 4711,
        "comm": "worker",
        "weight": 1.0,
    }


def test_maps():
    """The parts of a process' memory."""
    service = FakeService(address_space=an_address_space())
    answer = ask(service, "GET", "/v1/processes/4711/maps")
    assert service.calls == [("address_space", 4711)]
    assert (answer.status, answer.json["uses"][0]["use"]) == (200, "heap")
    assert sum(list(answer.json["shares"].values())[:5]) == answer.json["resident_bytes"]
    assert ask(service, "GET", "/v1/processes/4711/maps?limit=1").status == 400


def test_profile():
    """All that exporters need."""
    service = FakeService(profile=a_profile())
    answer = ask(service, "GET", "/v1/processes/4711/profile")
    assert service.calls == [("profile", 4711)]
    assert (answer.status, answer.json["mappings"][0]["build_id"]) == (200, "deadbeef")
    assert answer.json["report"]["sites"]


def test_pprof_as_scrapers_ask_for_it():
    """Under the path of Go's own handler, also with its parameters, on the address that only reads."""
    service = FakeService(profile=a_profile())
    answer = ask(service, "GET", "/debug/pprof/heap?pid=4711&seconds=5&debug=0", read_only=True)
    assert service.calls == [("profile", 4711)]
    assert (answer.status, answer.body[:2]) == (200, b"\x1f\x8b")
    assert answer.headers["content-type"] == "application/octet-stream"


def test_pprof_of_the_only_process():
    """Its pid may be omitted, but only if it is unambiguous."""
    service = FakeService(profile=a_profile(), processes=(a_traced_process(23),))
    assert ask(service, "GET", "/debug/pprof/heap").status == 200
    assert service.calls[-1] == ("profile", 23)
    for rows in ((), (a_traced_process(23), a_traced_process(101))):
        answer = ask(FakeService(processes=rows), "GET", "/debug/pprof/heap")
        assert (answer.status, answer.error["hint"]) == (400, "/debug/pprof/heap?pid=N")


def test_targets_to_discover():
    """One for each process that is traced now, at the requested address, with its labels."""
    labels = ProcessLabels(unit="shop.service")
    rows = (
        a_traced_process(process=a_process(23, labels=labels)),
        a_traced_process(process=a_process(101, state=ProcessState.EXITED)),
    )
    answer = ask(FakeService(processes=rows), "GET", "/v1/targets", read_only=True)
    names = {"comm": "leaky", "service_name": "leaky", "unit": "shop.service"}
    assert answer.json == [{"targets": ["localhost"], "labels": {"__param_pid": "23", "pid": "23", **names}}]


@pytest.mark.parametrize(
    ("query", "arguments"),
    [
        ("", (4711, None, None, True)),
        ("?limit=23", (4711, 23, None, True)),
        (f"?site={'a' * 16}&survivors=false", (4711, None, "a" * 16, False)),
    ],
)
def test_history(query, arguments):
    """Of all call sites, of some, or of one without its survivors."""
    service = FakeService(history=StoredHistory(1, "leaky", 45.0, 0.0, 0, 0, (), (), (), (), ()))
    assert ask(service, "GET", f"/v1/processes/4711/history{query}").status == 200
    assert service.calls == [("history", *arguments)]


def test_the_page_loads_nothing_from_other_servers():
    """Every file that it names is served, with a type, and its headers forbid all other sources."""
    page = ask(FakeService(), "GET", "/", read_only=True)
    assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    names = re.findall(r'(?:src|href)="(assets/[^"]+)"', page.body.decode())
    assert len(names) == 8
    loaded = set()
    while names:
        name = names.pop()
        loaded.add(name)
        answer = ask(FakeService(), "GET", f"/{name}", read_only=True)
        assert (answer.status, bool(answer.body)) == (200, True)
        assert answer.headers["content-type"].startswith(("text/css", "text/javascript"))
        imported = {f"assets/{each}" for each in re.findall(r' from "\./([^"]+)";', answer.body.decode())}
        names.extend(imported - loaded)
    assert "assets/overview.js" in loaded
    words = ask(FakeService(), "GET", "/assets/losses.js", read_only=True).body
    assert b'"live_full":"blocks not recorded' in words


@pytest.mark.parametrize("name", ["__init__.py", "../config.py", "vendor/../../config.py", "vendor", "x.js"])
def test_no_other_file_is_served(name):
    """Only those that the page needs."""
    assert ask(FakeService(), "GET", f"/assets/{name}").status == 404


def test_flame_graphs_are_served():
    """As a page, and as the tree that the other page draws."""
    service = FakeService(report=a_report())
    page = ask(service, "GET", "/flamegraph?pid=4711&value=live-count", read_only=True)
    assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    tree = ask(service, "GET", "/v1/processes/4711/flamegraph", read_only=True)
    assert tree.json["tree"]["name"] == "leaky, pid 4711"
    assert service.calls == [("report", 4711, None, SortKey.LIVE)] * 2
    assert ask(service, "GET", "/flamegraph").status == 400
    assert ask(service, "GET", "/v1/processes/4711/flamegraph?value=x").status == 400


@pytest.mark.parametrize(
    ("target", "render"),
    [
        ("/v1/processes/4711/flamegraph", "flamegraph_json"),
        ("/flamegraph?pid=4711", "flamegraph_html"),
        ("/debug/pprof/heap?pid=4711", "pprof_profile"),
        ("/v1/processes/4711/sites", "json_answer"),
        ("/v1/processes/4711/profile", "json_answer"),
    ],
)
def test_others_are_answered_while_something_large_is_rendered(monkeypatch, target, render):
    """The rendering ends only when another answer, on the same loop, has come."""
    others_answered = threading.Event()
    original = getattr(app, render)

    def slow(answer: Any, *arguments: Any) -> Any:
        if render != "json_answer" or not isinstance(answer, ProcessList):
            assert others_answered.wait(20), "nobody else was answered"
        return original(answer, *arguments)

    monkeypatch.setattr(app, render, slow)
    service = FakeService(report=a_report(), profile=a_profile(), processes=(a_traced_process(),))

    async def both() -> Answer:
        application = create_app(service, exposition, read_only=True)
        large = asyncio.create_task(call(application, "GET", target))
        await asyncio.sleep(0)
        assert (await call(application, "GET", "/v1/processes")).status == 200
        others_answered.set()
        return await large

    assert asyncio.run(both()).status == 200


@pytest.mark.parametrize(
    "value",
    [
        a_report(),
        a_report(sites=()),
        a_profile(),
        an_address_space(),
        a_blocks_report(),
        some_stats(),
        {"a": 1},
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_answer_encoded_in_pieces_is_the_same(value):
    """Item by item, and sent by the quarter of a megabyte."""
    assert json_answer(value).body == msgspec.json.encode(value)


def test_an_answer_of_many_pieces_arrives_whole():
    """A thousand call sites."""
    report = a_report(sites=tuple(a_site(f"f{n}") for n in range(1_009)))
    answer = ask(FakeService(report=report), "GET", "/v1/processes/4711/sites")
    assert len(answer.body) > 1 << 20
    assert answer.body == msgspec.json.encode(report)
    assert int(answer.headers["content-length"]) == len(answer.body)


def test_names_that_are_not_utf8_can_be_sent():
    """A process may have any bytes in its name; the report about it must come all the same."""
    report = a_report(process=a_process(comm=HOSTILE), sites=(a_site("caf\udce9"), a_site("naïve")))
    answer = ask(FakeService(report=report), "GET", "/v1/processes/4711/sites")
    assert [site["function"] for site in answer.json["sites"]] == [r"caf\xe9", "naïve"]


def test_metrics_get_the_accept_header():
    """And keep the content type that the exporter chose."""
    answer = ask(FakeService(), "GET", "/metrics", accept="application/openmetrics-text")
    assert answer.body == b"accepted application/openmetrics-text\n"
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"


# -- refusals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("/v1/processes/x/sites", "a pid must be a whole number from 1 to 4194304, not 'x'"),
        ("/v1/processes/0/sites", "a pid must be a whole number from 1 to 4194304, not '0'"),
        ("/v1/processes/-1/sites", "a pid must be a whole number from 1 to 4194304, not '-1'"),
        ("/v1/processes/4194305/sites", "a pid must be a whole number from 1 to 4194304, not '4194305'"),
        (
            f"/v1/processes/{'9' * 40}/sites",
            f"a pid must be a whole number from 1 to 4194304, not '{'9' * 40}'",
        ),
        ("/v1/processes/٣/sites", "a pid must be a whole number from 1 to 4194304, not '٣'"),
        ("/v1/processes/1/sites?limit=0", "limit must be a whole number from 1 to 1000000, not '0'"),
        ("/v1/processes/1/sites?limit=", "limit must be a whole number from 1 to 1000000, not ''"),
        ("/v1/processes/1/sites?limit=all", "limit must be a whole number from 1 to 1000000, not 'all'"),
        ("/v1/processes/1/sites?sort=size", "sort must be one of verdict, growth, live, count, not 'size'"),
        (
            "/v1/processes/1/sites?group=tid",
            "group must be one of site, function, caller, module, thread, stack, not 'tid'",
        ),
        ("/v1/processes/1/blocks?sort=live", "unknown parameter 'sort'"),
        ("/v1/processes/1/blocks?site=leak", "a site must be 16 hexadecimal digits, not 'leak'"),
        (
            "/v1/processes/1/blocks?site=5D41402ABC4B2A76",
            "a site must be 16 hexadecimal digits, not '5D41402ABC4B2A76'",
        ),
        ("/v1/processes/1/blocks?older_than_s=-1", "older_than_s must be a number of seconds, not '-1'"),
        ("/v1/processes/1/blocks?older_than_s=nan", "older_than_s must be a number of seconds, not 'nan'"),
        ("/v1/processes/1/blocks?older_than_s=1e9", "older_than_s must be a number of seconds, not '1e9'"),
        (
            "/v1/processes/1/blocks?limit=100001",
            "limit must be a whole number from 1 to 100000, not '100001'",
        ),
        ("/v1/processes/1/sites?limit=1&limit=2", "parameter limit appears more than once"),
        ("/v1/processes/1/sites?%1b[2J=1", "unknown parameter '\\\\x1b[2J'"),
        ("/v1/processes?limit=1", "unknown parameter 'limit'"),
        ("/v1/status?x=1", "unknown parameter 'x'"),
    ],
)
def test_a_bad_parameter_is_refused_in_words(target, words):
    """With 400, before the service is called."""
    answer = ask(FakeService(), "GET", target)
    assert answer.status == 400
    assert (answer.error["code"], answer.error["message"]) == ("bad-request", words)


@pytest.mark.parametrize(
    ("query", "arguments"),
    [
        ("", (0.0, True, 0.2, 0)),
        ("?older_than_s=61.5&stop=false&limit=7", (61.5, False, 0.2, 7)),
        ("?stop=true&stop_limit_s=60&limit=0", (0.0, True, 60.0, 0)),
    ],
)
def test_scan(query, arguments):
    """The parameters are passed on; kinds of blocks are words."""
    service = FakeService(scan=a_scan_report())
    answer = ask(service, "POST", f"/v1/processes/4711/scan{query}")
    assert service.calls == [("scan", 4711, *arguments)]
    assert answer.json["method"] == "stopped"
    (site,) = answer.json["sites"]
    assert site["sums"]["indirectly_lost_bytes"] == 1_031
    assert [block["reachability"] for block in site["blocks"]] == ["directly-lost", "indirectly-lost"]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("stop=no", "stop must be true or false, not 'no'"),
        ("stop_limit_s=60.5", "stop_limit_s must be a number of seconds up to 60, not '60.5'"),
        ("stop_limit_s=", "stop_limit_s must be a number of seconds up to 60, not ''"),
        ("limit=100001", "limit must be a whole number from 0 to 100000, not '100001'"),
        ("site=5d41402abc4b2a76", "unknown parameter 'site'"),
    ],
)
def test_a_scan_that_cannot_be(query, words):
    """Refused before the process is touched."""
    answer = ask(FakeService(), "POST", f"/v1/processes/1/scan?{query}")
    assert (answer.status, answer.error["message"]) == (400, words)


def test_a_scan_is_no_reading():
    """It stops the process, so metrics readers may not use it, nor GET requests."""
    assert ask(FakeService(), "POST", "/v1/processes/1/scan", read_only=True).status == 405
    assert ask(FakeService(), "GET", "/v1/processes/1/scan").status == 405


_STATUSES = [
    (errors.AccessDenied, 403),
    (errors.DaemonUnreachable, 503),
    (errors.TargetError, 422),
    (errors.NoSuchProcess, 404),
    (errors.TargetRefused, 422),
    (errors.NoAllocator, 422),
    (errors.BadElf, 422),
    (errors.NotYet, 503),
    (errors.AlreadyAttached, 409),
    (errors.NoSuchSite, 404),
    (errors.NotAttached, 404),
    (errors.KernelError, 500),
    (errors.KernelUnsupported, 501),
    (errors.CapacityError, 503),
    (errors.BpfleakdError, 500),
]


@pytest.mark.parametrize(("kind", "status"), _STATUSES)
def test_an_error_of_ours_has_its_status_and_words(kind, status):
    """Each class of the tree has a fitting one."""
    answer = ask(FakeService(attach=kind("the fact", "the way out")), "POST", "/v1/processes/1")
    assert answer.status == status
    assert answer.error == {"code": kind.code, "message": "the fact", "hint": "the way out"}


def test_a_bug_is_logged_and_not_shown():
    """The client learns that there is a bug, the log has the details."""
    stream = io.StringIO()
    configure_logging(LogConfig(), stream=stream)
    service = FakeService(attach=ZeroDivisionError("secret"))
    answer = ask(service, "POST", "/v1/processes/1")
    assert (answer.status, answer.error["code"]) == (500, "internal")
    assert b"secret" not in answer.body
    assert b"Traceback" not in answer.body
    line = json.loads(stream.getvalue())
    assert (line["event"], line["path"]) == ("api.failed", "/v1/processes/1")
    assert "ZeroDivisionError: secret" in line["exception"]


@pytest.mark.parametrize("target", ["/index.html", "/v2/status", "/v1/processes/1/2/3"])
def test_an_unknown_path_is_404(target):
    """In JSON like everything else."""
    answer = ask(FakeService(), "GET", target)
    assert (answer.status, answer.error["code"]) == (404, "not-found")


def test_a_wrong_method_is_405():
    """With the methods that there are."""
    answer = ask(FakeService(), "PUT", "/v1/processes")
    assert (answer.status, answer.error["code"]) == (405, "method-not-allowed")
    assert "GET" in answer.headers["allow"]


@pytest.mark.parametrize("method", ["POST", "DELETE", "PUT", "PATCH", "OPTIONS"])
@pytest.mark.parametrize("target", ["/v1/processes/1", "/v1/processes", "/metrics", "/nowhere"])
def test_the_read_only_flavour_changes_nothing(method, target):
    """Whatever is sent to the TCP address, the service is not asked; the answer says where to go."""
    answer = ask(FakeService(), method, target, read_only=True)
    assert (answer.status, answer.error["code"]) == (405, "method-not-allowed")
    assert answer.headers["allow"] == "GET, HEAD"
    assert "unix socket" in answer.error["hint"]


@pytest.mark.parametrize(
    "target",
    [
        "/v1/processes/1/blocks",
        "/v1/processes/1/maps",
        "/v1/processes/1/profile",
        "/debug/pprof/heap?pid=1",
        "/v1/targets",
    ],
)
def test_without_details_nothing_answers_addresses(target):
    """The service is not asked, and the answer says where to ask and what to configure."""
    answer = ask(FakeService(), "GET", target, read_only=True, details=False)
    assert (answer.status, answer.error["code"]) == (403, "access-denied")
    assert "unix socket" in answer.error["hint"]
    assert "metrics.details: true" in answer.error["hint"]


def test_without_details_frames_have_no_address():
    """In every answer with stacks; names, offsets and figures are as they were."""
    report = a_report(sites=(a_site(called_by=a_frame("order")),))
    entry = StoredReportEntry(1, 0.0, 1, 2, "shop", "/srv/shop", "exited", 3, 4, 5.0, 1)
    grouped = replace(a_grouped_report(1), groups=(a_group(stack=a_stack()),))
    service = FakeService(
        report=report,
        groups=grouped,
        compare=compared(replace(report, sites=()), report),
        stored_report=StoredReport(entry, report),
    )
    hidden = {
        target: ask(service, "GET", target, read_only=True, details=False).body
        for target in (
            "/v1/processes/1/sites",
            "/v1/processes/1/sites?group=stack",
            "/v1/processes/1/diff",
            "/v1/reports/1",
            "/v1/processes/1/flamegraph",
        )
    }
    for target, body in hidden.items():
        shown = ask(service, "GET", target).body
        assert re.sub(rb'"address":[0-9]+', b'"address":0', shown) == body, target
        assert not re.search(rb'"address":[1-9]', body)
    assert re.search(rb'"address":[1-9]', ask(service, "GET", "/v1/processes/1/sites").body)


def test_the_read_only_flavour_reads_everything():
    """All that GET gives."""
    service = FakeService(stats=some_stats(), processes=(), report=replace(a_report(), sites=()))
    for target in ("/v1/status", "/v1/processes", "/v1/processes/1/sites", "/metrics"):
        assert ask(service, "GET", target, read_only=True).status == 200


@pytest.mark.parametrize(
    ("query", "times"),
    [("", (None, 0.0)), ("?from_s=600", (600.0, 0.0)), ("?from_s=9.5&to_s=0.5", (9.5, 0.5))],
)
def test_diff(query, times):
    """Times are seconds ago; without them since the attach, until now."""
    service = FakeService(compare=compared(a_report(), a_report()))
    answer = ask(service, "GET", f"/v1/processes/4711/diff{query}")
    assert service.calls == [("compare", 4711, *times)]
    assert answer.status == 200
    assert list(answer.json) == [
        "before",
        "after",
        "unchanged_count",
        "left_out_sites",
        "sites",
        "built_anew",
    ]


def test_requests_to_a_runtime():
    """Names and a sample of the heap: looking is GET, disturbing the process is POST, and not over TCP."""
    named = NamesReport(23, "java", ("JVM 17.0.15",), 5, (UnnamedFrames(None, 2),), ())
    asked = replace(named, requested=RequestedNames("JVM", "Compiler.perfmap", 0.1, 2))
    price = HeapSamplePrice(23, "node", "V8", "127.0.0.1:9229", is_open=False, stops_s=None)
    found = SampledFunction("order", "app.js:3", 100, 1)
    sample = HeapSample(23, "node", "V8", "127.0.0.1:9229", 2.0, 100, (found,), False, False, False)
    service = FakeService(names=named, request_names=asked, heap_sample_price=price, heap_sample=sample)

    assert ask(service, "GET", "/v1/processes/23/names").json["unnamed"] == [{"module": None, "frames": 2}]
    assert ask(service, "POST", "/v1/processes/23/names").json["requested"]["newly_named"] == 2
    assert ask(service, "GET", "/v1/processes/23/heap-sample").json["address"] == "127.0.0.1:9229"
    answer = ask(service, "POST", "/v1/processes/23/heap-sample?sample_s=2")
    assert answer.json["functions"][0]["location"] == "app.js:3"
    assert service.calls[-1] == ("heap_sample", 23, 2.0)
    assert ask(service, "POST", "/v1/processes/23/heap-sample?sample_s=301").status == 400
    assert ask(service, "POST", "/v1/processes/23/names", read_only=True).status in (404, 405)


def test_methods_that_allocate_survivors():
    """The price is GET, sampling is POST, with a limit, and not over TCP."""
    line = SurvivorLine("Sessions.remember", 34)
    row = Survivor("shop.Order", 3, 0.75, line.function, line.line, ("Sessions.KNOWN",), (line,))
    price = SurvivorsPrice(23, "java", "JVM", 0.5)
    service = FakeService(survivors_price=price, survivors=SurvivorsReport(23, "java", "JVM", 2.0, 4, (row,)))

    assert ask(service, "GET", "/v1/processes/23/survivors").json["stops_s"] == 0.5
    answer = ask(service, "POST", "/v1/processes/23/survivors?sample_s=2")
    assert answer.json["survivors"][0]["stack"] == [{"function": "Sessions.remember", "line": 34}]
    assert service.calls[-1] == ("survivors", 23, 2.0)
    assert ask(service, "POST", "/v1/processes/23/survivors?sample_s=301").status == 400
    assert ask(service, "POST", "/v1/processes/23/survivors", read_only=True).status in (404, 405)
