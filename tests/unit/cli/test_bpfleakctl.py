"""bpfleakctl against a daemon that answers over a real socket: output, exit codes, messages."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from bpfleakd import errors
from bpfleakd.analysis.diff import compared
from bpfleakd.cli import bpfleakctl
from bpfleakd.model.address_space import AddressSpaceReport, JitModule
from bpfleakd.model.blocks import BlocksReport
from bpfleakd.model.daemon import Check, CheckStatus
from bpfleakd.model.difference import DiffReport
from bpfleakd.model.groups import GroupedReport, GroupKey
from bpfleakd.model.process import ProcessLabels, TracingMode
from bpfleakd.model.process_events import ProcessEventStats
from bpfleakd.model.report import LeakReport, SortKey, StoredReport, StoredReportEntry
from bpfleakd.model.scan import ScanReport

from ..api.serving import FakeService, running
from ..samples import (
    HOSTILE,
    a_block,
    a_blocks_report,
    a_frame,
    a_group,
    a_grouped_report,
    a_process,
    a_process_verdict,
    a_profile,
    a_report,
    a_scan_report,
    a_scanned_site,
    a_site,
    a_supervised_process,
    a_traced_process,
    a_watched_process,
    an_address_space,
    some_site_blocks,
    some_stats,
)
from .terminal import read_until


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.sock"


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch):
    for name in ("BPFLEAKD_SOCKET", "COLUMNS", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def ctl(path, capsys):
    """Run bpfleakctl against a service; return exit code, standard output and standard error."""

    def run(service: FakeService, *arguments: str) -> tuple[int, str, str]:
        with capture_logs(), running(service, path):  # the daemon's, which is in this process here
            capsys.readouterr()
            code = bpfleakctl.main(["--socket", str(path), *arguments])
            return code, *capsys.readouterr()

    return run


# -- commands ----------------------------------------------------------------------------------------------


def test_attach(ctl):
    """One line with the traced process and the method."""
    service = FakeService(attach=a_traced_process(4711))
    assert ctl(service, "attach", "4711") == (
        0,
        "attached to 4711 leaky /usr/bin/leaky by session, 2 functions probed (free, malloc)\n",
        "",
    )
    assert service.calls == [("attach", 4711, None, False)]
    ctl(service, "attach", "--mode", "sampled", "4711")
    assert service.calls[1:] == [("attach", 4711, TracingMode.SAMPLED, False)]


def test_a_process_is_written_to_after_a_yes_only(ctl):
    """No terminal to ask at means no; the message names a way to see more."""
    needed = replace(a_process(4711), mode="go-profile", notes=("import net/http/pprof",))
    service = FakeService(attach=replace(a_traced_process(4711), process=needed, probes=()))
    code, output, error = ctl(service, "attach", "--enable-profile", "4711")
    assert (code, output, service.calls) == (1, "", [])
    assert "needs confirmation, or --yes" in error
    code, output, error = ctl(service, "attach", "--enable-profile", "--yes", "4711")
    assert (code, error) == (0, "")
    assert output.endswith("its own heap profile is read, no function is probed\nimport net/http/pprof\n")
    assert service.calls == [("attach", 4711, None, True)]


def test_detach(ctl):
    """One line with the process."""
    service = FakeService(detach=a_traced_process(4711))
    code, out, err = ctl(service, "detach", "4711")
    assert (code, out.startswith("detached from 4711 leaky after 3m31s"), err) == (0, True, "")


def test_ps(ctl):
    """A table, or JSON with the same rows."""
    service = FakeService(processes=(a_traced_process(23), a_traced_process(101)))
    code, out, _ = ctl(service, "ps")
    assert (code, [line.split()[0] for line in out.splitlines()]) == (0, ["pid", "23", "101"])
    code, out, _ = ctl(service, "ps", "--json")
    assert [row["process"]["pid"] for row in json.loads(out)["processes"]] == [23, 101]


def test_ps_all(ctl):
    """The watched processes below the traced ones."""
    service = FakeService(
        processes=(a_traced_process(23),), watched=(a_watched_process(101),), stats=some_stats()
    )
    code, out, _ = ctl(service, "ps", "--all")
    assert (code, [line.split()[0] for line in out.splitlines() if line]) == (
        0,
        ["pid", "23", "watched", "101"],
    )
    code, out, _ = ctl(service, "ps", "--all", "--json")
    answer = json.loads(out)
    assert [row["process"]["pid"] for row in answer["processes"]] == [23]
    assert [(row["pid"], row["state"]) for row in answer["watched"]] == [(101, "paused")]


def test_ps_all_lists_missed_processes(ctl):
    """Processes that ended before they were attached to, by the rule that matched them."""
    events = ProcessEventStats(missed_total={"rule 1": 1_009, "default": 23})
    stats = replace(some_stats(), process_events=events)
    service = FakeService(processes=(), watched=(), stats=stats)
    _, out, _ = ctl(service, "ps", "--all")
    assert "without having been traced although the policy says so: 23 by default, 1,009 by rule 1" in (
        " ".join(out.split())
    )


def test_policy(ctl):
    """The rule that decided, for every process of the host or for one."""
    service = FakeService(supervised=(a_supervised_process(23), a_supervised_process(101)))
    code, out, _ = ctl(service, "policy")
    assert (code, [line.split()[0] for line in out.splitlines()]) == (0, ["pid", "23", "101"])
    assert "exact rule 2 refused shop.service it is a Go program" in " ".join(out.split())
    code, out, _ = ctl(service, "policy", "--json")
    assert [row["pid"] for row in json.loads(out)["supervised"]] == [23, 101]
    code, out, _ = ctl(service, "policy", "101", "--json")
    assert [row["pid"] for row in json.loads(out)["supervised"]] == [101]
    code, _, err = ctl(service, "policy", "7")
    assert (code, err.splitlines()[0]) == (6, "bpfleakctl: there is no process 7")


def test_top_of_one_process(ctl):
    """Without a terminal it is printed once."""
    service = FakeService(report=a_report())
    code, out, err = ctl(service, "top", "--pid", "4711", "--limit", "7", "--sort", "count")
    assert (code, err) == (0, "")
    assert "leak_here" in out
    assert "/src/leaky.c:101" in out
    assert service.calls == [("report", 4711, 7, SortKey.COUNT, True)]


def test_top_of_all_processes(ctl):
    """Each with its own header; one that ends meanwhile is left out."""

    def report(pid: int, **_: object) -> LeakReport | Exception:
        return errors.NotAttached("gone") if pid == 23 else a_report(pid)

    service = FakeService(processes=tuple(map(a_traced_process, (19, 23, 101))), report=report)
    code, out, _ = ctl(service, "top", "--once", "--stacks", "0", "--limit", "0")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines() if "attached" in line] == ["19", "101"]
    assert service.calls[1] == ("report", 19, None, SortKey.VERDICT, True)


def test_top_json_is_the_contract(ctl):
    """With --pid the report itself, otherwise a list, even of one; it can be read back."""
    service = FakeService(processes=(a_traced_process(),), report=a_report())
    code, out, _ = ctl(service, "top", "--pid", "4711", "--json")
    assert code == 0
    assert msgspec.json.decode(out, type=LeakReport) == a_report()
    code, out, _ = ctl(service, "top", "--json")
    assert list(json.loads(out)) == ["processes"]
    assert msgspec.convert(json.loads(out)["processes"], list[LeakReport]) == [a_report()]
    assert ctl(FakeService(processes=()), "top", "--json")[:2] == (0, '{\n  "processes": []\n}\n')


def test_top_by_function(ctl):
    """A row a function; JSON can be read back, and is a list without --pid."""
    service = FakeService(groups=a_grouped_report(), processes=(a_traced_process(),))
    code, out, err = ctl(service, "top", "--pid", "4711", "--group", "function", "--limit", "0")
    assert (code, err) == (0, "")
    assert out.splitlines()[-1].endswith("leak_here")
    code, out, _ = ctl(service, "top", "--pid", "4711", "--group", "thread", "--json")
    assert (code, msgspec.json.decode(out, type=GroupedReport)) == (0, a_grouped_report())
    code, out, _ = ctl(service, "top", "--group", "module", "--sort", "live", "--json")
    assert msgspec.convert(json.loads(out)["processes"], list[GroupedReport]) == [a_grouped_report()]
    assert service.calls == [
        ("groups", 4711, GroupKey.FUNCTION, None, SortKey.VERDICT, True),
        ("groups", 4711, GroupKey.THREAD, 20, SortKey.VERDICT, True),
        ("processes",),
        ("groups", 4711, GroupKey.MODULE, 20, SortKey.LIVE, True),
    ]


def test_report(ctl):
    """Sums, stacks and blocks, or JSON that can be read back."""
    service = FakeService(blocks=a_blocks_report())
    code, out, err = ctl(service, "report", "--pid", "4711")
    assert (code, err) == (0, "")
    assert "0x5555557592a0 1,048,576  3m13s 4711 worker leak_here /src/leaky.c:23" in out
    wanted = ("--site", "5d41402abc4b2a76", "--older-than", "1m1.5s", "--limit", "7")
    code, out, _ = ctl(service, "report", "--pid", "4711", *wanted, "--json")
    assert (code, msgspec.json.decode(out, type=BlocksReport)) == (0, a_blocks_report())
    assert service.calls == [
        ("blocks", 4711, None, 0.0, 1_000, True),
        ("blocks", 4711, "5d41402abc4b2a76", 61.5, 7, True),
    ]


def test_scan(ctl):
    """Sums and stacks, blocks on request, or JSON that can be read back."""
    service = FakeService(scan=a_scan_report())
    code, out, err = ctl(service, "scan", "--pid", "4711")
    assert (code, err) == (0, "")
    assert "2.00 MiB     2 directly lost" in out
    wanted = ("--older-than", "0", "--blocks", "--limit", "7", "--stop-limit", "1500", "--json")
    code, out, _ = ctl(service, "scan", "--pid", "4711", *wanted)
    assert (code, msgspec.json.decode(out, type=ScanReport)) == (0, a_scan_report())
    ctl(service, "scan", "--pid", "4711", "--no-stop", "--blocks")
    assert service.calls == [
        ("scan", 4711, 60.0, True, 0.2, 0),
        ("scan", 4711, 0.0, True, 1.5, 7),
        ("scan", 4711, 60.0, False, 0.2, 1_000),
    ]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            errors.NotAttached("it is not", "bpfleakctl attach 23"),
            "bpfleakctl: it is not\n  hint: bpfleakctl attach 23\n",
        ),
        (errors.NoSuchSite("no such", "look"), "bpfleakctl: no such\n  hint: look\n"),
    ],
)
def test_report_of_an_unknown_process(ctl, error, words):
    """A process, or a site, that does not exist."""
    assert ctl(FakeService(blocks=error), "report", "--pid", "23") == (5, "", words)


def test_diff(ctl, tmp_path):
    """Of two files, without a daemon: a table, or JSON that can be read back."""
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    before.write_bytes(msgspec.json.encode(a_report(sites=())))
    after.write_bytes(msgspec.json.encode(a_report(sites=(a_site(),))))
    code, out, err = ctl(FakeService(), "diff", str(before), str(after))
    assert (code, err) == (0, "")
    assert "call sites: 1 new, 0 grown, 0 shrunk, 0 gone, 0 unchanged" in out
    assert "leak_here /src/leaky.c:23" in out
    code, out, _ = ctl(FakeService(), "diff", str(after), str(after), "--json")
    assert msgspec.json.decode(out, type=DiffReport).unchanged_count == 1


def test_diff_of_times_and_kept_reports(ctl, tmp_path):
    """Two times of a process, a kept report and the process now, two kept ones, one and a file."""
    report = a_report()
    kept = StoredReportEntry(12, 0.0, 23, 1, "leaky", "", "exited", 1, 1, 0.0, 1)
    answers = {
        "compare": compared(report, report),
        "report": report,
        "stored_report": StoredReport(kept, report),
    }
    service = FakeService(**answers)
    file = tmp_path / "saved.json"
    file.write_bytes(msgspec.json.encode(report))
    for arguments in (
        ("--pid", "23", "--from", "10m", "--to", "now"),
        ("--pid", "23", "--to", "90s"),
        ("--pid", "23", "--from", "start"),
        ("12", "--pid", "23"),
        ("12", "15"),
        (str(file), "15"),
    ):
        code, out, err = ctl(service, "diff", *arguments)
        assert (code, err) == (0, "")
        assert "0 gone, 1 unchanged" in out
    assert service.calls == [
        ("compare", 23, 600.0, 0.0),
        ("compare", 23, None, 90.0),
        ("compare", 23, None, 0.0),
        ("stored_report", 12),
        ("report", 23, None, SortKey.LIVE, True),
        ("stored_report", 12),
        ("stored_report", 15),
        ("stored_report", 15),
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("before.json",),
        ("12", "13", "--pid", "23"),
        ("12", "13", "--from", "1m"),
        ("--pid", "23", "--to", "start"),
    ],
)
def test_diff_rejects_wrong_arguments(ctl, arguments):
    """A wrong command line."""
    with pytest.raises(SystemExit) as ended:
        ctl(FakeService(), "diff", *arguments)
    assert ended.value.code == 2


def test_ps_by_severity_and_as_it_is_wanted(ctl, monkeypatch):
    """The worst first; wide at any width, without titles, of one process."""
    calm = a_traced_process(1, process=a_process(1, comm="calm"), process_verdict=None)
    leaky = a_traced_process(2, process=a_process(2, comm="leaky"), process_verdict=a_process_verdict())
    service = FakeService(processes=(calm, leaky))
    _, out, _ = ctl(service, "ps")
    assert out.index("leaky") < out.index("calm")
    assert "executable" not in out
    monkeypatch.setenv("COLUMNS", "60")
    _, out, _ = ctl(service, "ps", "-o", "wide", "--no-headers")
    assert leaky.process.exe in out
    assert "growth/s" not in out
    _, out, _ = ctl(service, "ps", "1")
    assert "leaky" not in out
    assert ctl(service, "ps", "3")[0] == errors.NotAttached.exit_code


def test_maps(ctl):
    """Tables, or JSON that can be read back."""
    service = FakeService(address_space=an_address_space())
    code, out, err = ctl(service, "maps", "--pid", "4711")
    assert (code, err) == (0, "")
    assert "files, libraries" in out
    code, out, _ = ctl(service, "maps", "--pid", "4711", "--json")
    assert (code, msgspec.json.decode(out, type=AddressSpaceReport)) == (0, an_address_space())
    assert service.calls == [("address_space", 4711)] * 2


def test_maps_of_a_process_that_is_not_attached(ctl):
    """The daemon's hint is the command to type."""
    service = FakeService(
        address_space=errors.NotAttached("process 23 is not being traced", "bpfleakctl attach 23")
    )
    code, out, err = ctl(service, "maps", "--pid", "23")
    assert (code, out) == (5, "")
    assert err == "bpfleakctl: process 23 is not being traced\n  hint: bpfleakctl attach 23\n"


@pytest.mark.parametrize(
    ("kind", "ending", "first_bytes"),
    [
        ("html", ".html", b"<!DOCTYPE html>"),
        ("svg", ".svg", b"<svg"),
        ("pprof", ".pb.gz", b"\x1f\x8b"),
        ("speedscope", ".speedscope.json", b'{"$schema"'),
        ("collapsed", ".txt", b"_start;main;leak_here;malloc "),
    ],
)
def test_an_export_is_written_completely(ctl, tmp_path, kind, ending, first_bytes):
    """It replaces the old file and leaves no other; the format comes from the option or the file name."""
    for name, options in ((f"leak{ending}", ()), ("leak", ("--format", kind))):
        path = tmp_path / name
        path.write_text("old")
        service = FakeService(profile=a_profile())
        assert ctl(service, "export", "--pid", "4711", "-o", str(path), *options) == (0, "", "")
        assert path.read_bytes().startswith(first_bytes)
        assert [file.name for file in tmp_path.iterdir()] == [name]
        assert service.calls == [("profile", 4711)]
        path.unlink()


def test_a_flame_graph_against_a_saved_report(ctl, tmp_path):
    """It reads the output of `top --json`; anything else is refused with a hint how to make it."""
    service = FakeService(report=a_report(), profile=a_profile())
    saved = tmp_path / "before.json"
    saved.write_text(ctl(service, "top", "--pid", "4711", "--json")[1])
    against = ("export", "--pid", "4711", "--against", str(saved))
    assert "before</p>" not in ctl(service, *against)[1]
    saved.write_text("{}")
    code, out, err = ctl(service, *against)
    assert (code, out) == (1, "")
    assert "is not a report" in err
    assert "top --pid N --json" in err


def test_only_flame_graphs_are_compared(ctl):
    """Options that would silently be ignored are refused."""
    with pytest.raises(SystemExit) as ended:
        ctl(FakeService(), "export", "--pid", "1", "--format", "pprof", "--against", "before.json")
    assert ended.value.code == 2


def test_a_profile_that_cannot_be_written_is_an_error(ctl, tmp_path):
    """With the name of the file."""
    path = tmp_path / "missing" / "profile.html"
    code, out, err = ctl(FakeService(profile=a_profile()), "export", "--pid", "4711", "-o", str(path))
    assert (code, out) == (1, "")
    assert err == f"bpfleakctl: cannot write {path}: No such file or directory\n"


def test_hostile_names_do_no_harm(ctl):
    """In tables, lines, JSON and errors."""
    traced = a_traced_process(process=a_process(comm=HOSTILE, exe=HOSTILE))
    refusal = errors.TargetRefused(HOSTILE, HOSTILE)
    report = a_report(process=traced.process, sites=(a_site(HOSTILE, module=HOSTILE, location=HOSTILE),))
    memory = an_address_space(comm=HOSTILE, jit_modules=(JitModule(HOSTILE, 1, 1),), losses={HOSTILE: 1})
    frame = a_frame(HOSTILE, module=HOSTILE, location=HOSTILE)
    group = a_group(HOSTILE, comm=HOSTILE, stack=(frame,), sites=(HOSTILE,))
    groups = a_grouped_report(process=traced.process, groups=(group,), losses={HOSTILE: 1})
    site = some_site_blocks(site=HOSTILE, caller=frame, blocks=(a_block(comm=HOSTILE),), stack=(frame,))
    blocks = a_blocks_report(process=traced.process, sites=(site,), losses={HOSTILE: 1})
    lost = replace(a_scan_report().sites[0].blocks[0], comm=HOSTILE)
    scanned = a_scanned_site(site=HOSTILE, stack=(frame,), blocks=(lost,), function=HOSTILE)
    scan = a_scan_report(process=traced.process, sites=(scanned,), losses={HOSTILE: 1})
    service = FakeService(
        scan=scan,
        processes=(traced,),
        supervised=(a_supervised_process(comm=HOSTILE, reason=HOSTILE, labels=ProcessLabels(unit=HOSTILE)),),
        attach=traced,
        detach=refusal,
        report=report,
        address_space=memory,
        groups=groups,
        blocks=blocks,
    )
    for arguments in (
        ["ps"],
        ["ps", "--json"],
        ["ps", "--all"],
        ["policy"],
        ["policy", "--json"],
        ["attach", "1"],
        ["detach", "1"],
        ["top"],
        ["top", "--pid", "1", "--json"],
        ["maps", "--pid", "1"],
        ["report", "--pid", "1"],
        ["report", "--pid", "1", "--json"],
        ["scan", "--pid", "1", "--blocks"],
        ["scan", "--pid", "1", "--json"],
        *(["top", "--pid", "1", "--group", by] for by in ("function", "module", "thread", "stack")),
        ["top", "--pid", "1", "--group", "thread", "--json"],
        ["maps", "--pid", "1", "--json"],
    ):
        _, out, err = ctl(service, *arguments)
        assert all(line.isprintable() for line in (out + err).split("\n"))


def test_doctor(ctl, monkeypatch):
    """1 if a check failed, 0 if all is well or merely worth a warning."""
    checks = [Check("a", CheckStatus.OK, "fine"), Check("b", CheckStatus.WARN, "meh", "do it")]
    monkeypatch.setattr("bpfleakd.cli.commands.doctor.run_checks", lambda **_: tuple(checks))
    code, out, _ = ctl(FakeService(), "doctor")
    assert (code, out.split()) == (0, ["ok", "a", "fine", "warn", "b", "meh", "→", "do", "it"])
    checks.append(Check("c", CheckStatus.FAIL, "broken"))
    code, out, _ = ctl(FakeService(), "doctor", "--json")
    assert code == 1
    assert json.loads(out)["checks"][2] == {"name": "c", "status": "fail", "detail": "broken", "way_out": ""}


# -- errors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.AccessDenied, 4),
        (errors.NoSuchProcess, 6),
        (errors.TargetRefused, 7),
        (errors.NoAllocator, 8),
        (errors.KernelError, 9),
        (errors.KernelUnsupported, 10),
    ],
)
def test_an_error_of_the_daemon_ends_with_its_exit_code(ctl, error, code):
    """The fact, and below it the way out."""
    service = FakeService(attach=error("the fact", "the way out"))
    assert ctl(service, "attach", "23") == (code, "", "bpfleakctl: the fact\n  hint: the way out\n")


def test_an_error_without_a_hint_is_one_line(ctl):
    """No empty hint."""
    assert (
        ctl(FakeService(attach=errors.KernelError("the fact")), "attach", "23")[2] == "bpfleakctl: the fact\n"
    )


def test_no_daemon(path, capsys):
    """Exit code 3, the path that was tried, and how to start it."""
    assert bpfleakctl.main(["--socket", str(path), "ps"]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        f"bpfleakctl: no daemon: there is no {path}\n"
        "  hint: start it: `systemctl start bpfleakd`, or `bpfleakd` in a terminal\n"
    )


@pytest.mark.parametrize("flags", [[], ["--json"], ["--once"]])
def test_top_of_a_process_that_is_not_attached(ctl, flags):
    """The daemon's hint is the command to type."""
    service = FakeService(report=errors.NotAttached("process 23 is not being traced", "bpfleakctl attach 23"))
    code, out, err = ctl(service, "top", "--pid", "23", *flags)
    assert (code, out) == (5, "")
    assert err == "bpfleakctl: process 23 is not being traced\n  hint: bpfleakctl attach 23\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["unknown"],
        ["attach"],
        ["attach", "--pid", "x"],
        ["attach", "0"],
        ["attach", "-1"],
        ["attach", "99999999"],
        ["attach", "--pid", "٣"],
        ["top", "--limit", "-1"],
        ["top", "--sort", "size"],
        ["top", "--interval", "0"],
        ["top", "--interval", "nan"],
        ["top", "--stacks", "x"],
        ["maps"],
        ["report"],
        ["report", "--pid", "1", "--site", "leak_here"],
        ["report", "--pid", "1", "--older-than", "1w"],
        ["report", "--pid", "1", "--limit", "0"],
        ["report", "--pid", "1", "--limit", "100001"],
        ["top", "--group", "tid"],
        ["maps", "--pid", "x"],
    ],
)
def test_a_wrong_command_line_ends_with_2(arguments, capsys):
    """As with every other command."""
    with pytest.raises(SystemExit) as caught:
        bpfleakctl.main(arguments)
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith("usage: bpfleakctl")


def test_without_a_command_it_lists_the_commands(capsys):
    """More useful than that an argument is missing; still a wrong usage."""
    assert bpfleakctl.main([]) == 2
    assert "list the traced processes" in capsys.readouterr().err


def test_the_socket_may_be_given_in_three_ways(path, capsys, monkeypatch, tmp_path):
    """An option before or after the command goes before the environment."""
    with running(FakeService(processes=()), path):
        assert bpfleakctl.main(["ps", "--socket", str(path)]) == 0
        monkeypatch.setenv("BPFLEAKD_SOCKET", str(path))
        assert bpfleakctl.main(["ps"]) == 0
        assert bpfleakctl.main(["--socket", str(tmp_path / "other"), "ps"]) == 3
    assert str(tmp_path / "other") in capsys.readouterr().err


def test_an_interrupt_ends_with_130(capsys, monkeypatch):
    """Without a traceback."""

    def interrupted(_self: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("bpfleakd.api.client.DaemonClient.processes", interrupted)
    assert bpfleakctl.main(["ps"]) == 130
    assert capsys.readouterr() == ("", "")


# -- as a separate process ---------------------------------------------------------------------------------


def command(path: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "bpfleakd.cli.bpfleakctl", "--socket", str(path), *arguments]


@pytest.mark.parametrize("words", [["top", "4711", "--once"], ["top", "4711", "--json"]])
def test_a_full_disk_is_an_error(path, words):
    """Not a traceback."""
    with running(FakeService(report=a_report()), path), open("/dev/full", "w") as full:
        done = subprocess.run(
            command(path, *words), stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 1
    assert done.stderr == "bpfleakctl: cannot write the output: No space left on device\n"


def test_a_closed_standard_output_is_quiet(path):
    """As if it were /dev/null."""
    closed = ["sh", "-c", 'exec "$@" >&-', "sh", *command(path, "top", "4711", "--once")]
    with running(FakeService(report=a_report()), path):
        done = subprocess.run(closed, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_broken_pipe_is_quiet(path):
    """`bpfleakctl ps --json | head -1` has nothing to complain about."""
    for arguments in (["ps", "--json"], ["ps"]):
        with running(FakeService(processes=tuple(map(a_traced_process, range(1, 3_000)))), path):
            process = subprocess.Popen(
                command(path, *arguments),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                # An unbuffered Python loses the rest of a write that came to a part, without an error.
                env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
            )
            process.stdout.read(10)
            process.stdout.close()
            assert process.stderr.read() == b""
            process.stderr.close()
            assert process.wait() == 141


def test_a_terminal_that_knows_only_ascii_gets_escapes(path):
    """No crash over an ellipsis or a name."""
    with running(FakeService(report=a_report(sites=(a_site("naïve"),))), path):
        done = subprocess.run(
            command(path, "top", "--pid", "4711"),
            env={**os.environ, "PYTHONIOENCODING": "ascii"},
            capture_output=True,
            check=True,
        )
    assert rb"na\xefve" in done.stdout


def test_the_command_starts_fast(path):
    """Nothing heavy is imported where no table is drawn."""
    script = (
        "import sys; from bpfleakd.cli import bpfleakctl;"
        f"bpfleakctl.main(['--socket', {str(path)!r}, 'ps', '--json']);"
        "heavy = {'rich', 'numpy', 'h11', 'asyncio', 'yaml', 'structlog', 'bcc'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    with running(FakeService(processes=()), path):
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_top_is_live_on_a_terminal(path):
    """It is drawn again and again at the terminal's width, and an interrupt gives the screen back."""
    calls = iter(range(1, 1_000))

    def report(pid: int, **_: object) -> LeakReport:
        return a_report(pid, process=a_process(pid, live_count=1_000 + next(calls)))

    with running(FakeService(report=report), path):
        child, terminal = pty.fork()
        if child == 0:
            os.environ["TERM"] = "xterm"
            arguments = command(path, "top", "--pid", "4711", "--interval", "0.1")
            os.execv(arguments[0], arguments)
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
        screen = read_until(terminal, b"1,005 blocks")
        os.kill(child, signal.SIGINT)
        rest = read_until(terminal, None)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 130
        os.close(terminal)
    assert b"\x1b[?1049h" in screen  # the alternate screen
    assert b"\x1b[?1049l" in rest
    assert b"Traceback" not in rest


def test_top_once_on_a_terminal_is_a_plain_table(path):
    """--once draws no screen."""
    with running(FakeService(report=a_report()), path):
        child, terminal = pty.fork()
        if child == 0:
            os.environ["TERM"] = "xterm"
            arguments = command(path, "top", "--pid", "4711", "--once")
            os.execv(arguments[0], arguments)
        screen = read_until(terminal, None)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        os.close(terminal)
    assert b"leak_here" in screen
    assert b"\x1b[?1049h" not in screen


def test_a_flame_graph_does_not_go_to_a_terminal(path):
    """It would be a screen full of HTML."""
    with running(FakeService(), path):
        child, terminal = pty.fork()
        if child == 0:
            arguments = command(path, "export", "4711")
            os.execv(arguments[0], arguments)
        screen = read_until(terminal, None)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
        os.close(terminal)
    assert b"a terminal cannot show html" in screen
    assert b"-o leak.html" in screen


def test_the_daemon_ends_while_top_is_live(path):
    """The screen stays, reports it and waits for the next daemon; then it can be left as usual."""
    with running(FakeService(report=a_report()), path):
        child, terminal = pty.fork()
        if child == 0:
            os.environ["TERM"] = "xterm"
            arguments = command(path, "top", "--pid", "4711", "--interval", "0.1")
            os.execv(arguments[0], arguments)
        read_until(terminal, b"leak_here")
    read_until(terminal, b"reconnecting")
    with running(FakeService(report=a_report()), path):
        read_until(terminal, b"leak_here")
        os.write(terminal, b"q")
        rest = read_until(terminal, None)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    os.close(terminal)
    assert b"\x1b[?1049l" in rest


def test_status_of_the_daemon_is_part_of_the_checks(path):
    """`doctor` runs them all for real, and says that the daemon answers."""
    with running(FakeService(stats=some_stats()), path):
        done = subprocess.run(command(path, "doctor", "--json"), capture_output=True, text=True, check=False)
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert checks["daemon"]["detail"] == f"version 0.1.0 answers on {path}"
    assert done.returncode == (1 if any(check["status"] == "fail" for check in checks.values()) else 0)


@pytest.mark.parametrize(
    "words", [["--socket", "/nowhere", "detach", "1"], ["--socket=/nowhere", "detach", "1"], ["detach", "1"]]
)
def test_a_command_does_not_import_the_others(words: list[str]):
    """It would start later: with all of them, the screen of `top` among them."""
    script = (
        f"import sys; from bpfleakd.cli.bpfleakctl import main; code = main({words})\n"
        "print(code, [name for name in sys.modules if name.startswith('bpfleakd.cli.commands.')])"
    )
    environment = os.environ | {"BPFLEAKD_SOCKET": "/nowhere"}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment
    )
    code = errors.DaemonUnreachable.exit_code
    assert done.stdout == f"{code} ['bpfleakd.cli.commands.detach']\n"


def test_a_socket_may_be_called_as_a_command_is(capsys):
    """The word after --socket is not a command, also if the option is abbreviated."""
    for option in ("--socket", "--sock"):
        assert bpfleakctl.main([option, "top", "detach", "1"]) == errors.DaemonUnreachable.exit_code
        assert "top" in capsys.readouterr().err
