"""Rendered output, at 80 columns and in a pipe."""

from __future__ import annotations

import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.cells import cell_len

from bpfleakd.cli.render.checks import checks_view
from bpfleakd.cli.render.console import fitting_width, make_console
from bpfleakd.cli.render.processes import processes_view, watched_view
from bpfleakd.cli.render.report import reports_view
from bpfleakd.cli.render.words import attached_line, detached_line, json_text, loss_lines
from bpfleakd.model.code.stack import StackEnd
from bpfleakd.model.daemon import Check, CheckStatus
from bpfleakd.model.process import ProcessState
from bpfleakd.model.verdict import Verdict
from bpfleakd.model.watching import WatchState

from ..samples import (
    HOSTILE,
    a_frame,
    a_process,
    a_process_verdict,
    a_report,
    a_site,
    a_stack,
    a_traced_process,
    a_watched_process,
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def drawn(view: Any, columns: int | None = 80) -> list[str]:
    """Return the lines as they are printed; without `columns` as into a pipe."""
    stream = io.StringIO()
    make_console(stream, {} if columns is None else {"COLUMNS": str(columns)}).print(view)
    lines = stream.getvalue().split("\n")[:-1]
    assert all(line.isprintable() for line in lines)
    if columns:
        assert max((cell_len(line) for line in lines), default=0) <= columns
    return [line.rstrip() for line in lines]


def report_lines(*reports: Any, columns: int | None = 80, stacks: int = 3):
    return drawn(reports_view(reports, width=columns, stacks=stacks), columns)


# -- top ---------------------------------------------------------------------------------------------------


def test_top_is_a_header_a_row_and_a_stack():
    """All of it readable at 80 columns."""
    assert report_lines(a_report()) == [
        "4711 leaky  live 4.77 MiB in 10,007 blocks  +7.82 KiB/s  attached 3m31s  exact",
        "verdict    growth/s     live     count  oldest function  where",
        "leak    +7.73 KiB/s 1.91 MiB     4,201   3m13s leak_here /src/leaky.c:23",
        "  83% sure: +23.0 KiB in 59s, steadily; 97% of old blocks still live",
        "      malloc  libc.so.6+0x99e00",
        "      leak_here  leaky  /src/leaky.c:23",
        "      main  leaky  /src/leaky.c:101",
        "      _start  leaky+0x1061",
    ]


def test_only_the_first_sites_have_their_stacks_shown():
    """The rest are rows that line up with the first."""
    sites = tuple(a_site(f"leak_{n}", site=str(n)) for n in range(5))
    lines = report_lines(a_report(sites=sites), stacks=2)
    rows = [line for line in lines if "leak_" in line and "KiB/s" in line]
    assert [row.split()[7] for row in rows] == [f"leak_{n}" for n in range(5)]
    assert len({row.index("leak_") for row in rows}) == 1
    assert sum("_start" in line for line in lines) == 2
    assert not any("_start" in line for line in report_lines(a_report(sites=sites), stacks=0))


def test_reasons_of_growing_sites_and_of_the_first():
    """A screen full of reasons why steady sites are steady would hide the leak."""
    verdicts = (Verdict.STEADY, Verdict.STEADY, Verdict.GROWING, Verdict.CHURN)
    sites = tuple(a_site(site=str(n), verdict=each, reason=f"why {n}") for n, each in enumerate(verdicts))
    lines = report_lines(a_report(sites=sites), stacks=1)
    assert [line.strip() for line in lines if "why" in line] == ["83% sure: why 0", "83% sure: why 2"]
    assert [line.split()[0] for line in lines if "KiB/s" in line and "leak_here" in line] == list(verdicts)


def test_losses_are_shown():
    """In words and with the setting to change; reasons with a count of 0 are omitted."""
    lines = report_lines(
        a_report(losses={"live_full": 1_234, "stack_full": 0, "new_reason": 2}), columns=None
    )
    assert lines[1:3] == [
        "missed: 1,234 blocks not recorded: the table of live blocks is full (limits.live_blocks)",
        "missed: 2 new reason",
    ]
    assert not any("missed" in line for line in report_lines(a_report()))


def test_names_that_are_to_come_are_announced():
    """A function without a name is not an error then: a later request has it."""
    words = "still being looked up"
    assert words in "\n".join(report_lines(a_report(names_pending=True), columns=None))
    assert words not in "\n".join(report_lines(a_report(), columns=None))


def test_every_loss_of_the_kernel_side_has_words():
    """bpf/abi.h grows; this test reminds the author of a new reason."""
    abi = pytest.importorskip("bpfleakd.kernel.abi")
    for reason in abi.LOSS_REASONS:
        (line,) = loss_lines({reason: 1})
        assert reason.replace("_", " ") != line.removeprefix("missed: 1 ")


@pytest.mark.parametrize(
    ("process", "words"),
    [
        (a_process(allocated_count=0, live_count=0), "nothing was allocated since the attach 3m31s ago"),
        (a_process(live_count=0), "all 15,013 blocks allocated since the attach 3m31s ago were freed again"),
        (a_process(), "no call sites yet"),
    ],
)
def test_no_sites_is_explained(process, words):
    """An empty table would leave one wondering."""
    lines = report_lines(a_report(process=process, sites=()))
    assert words in " ".join(lines)


@pytest.mark.parametrize("end", [end for end in StackEnd if end != StackEnd.BOTTOM])
def test_a_truncated_stack_states_the_reason(end):
    """Each reason has words."""
    lines = report_lines(a_report(sites=(a_site(truncated=end),)))
    assert lines[-1].startswith("      … truncated: ")
    assert end.value not in lines[-1]


def test_a_process_that_ended_is_marked():
    """Its figures are its last ones."""
    lines = report_lines(a_report(process=a_process(state=ProcessState.EXITED)))
    assert lines[0].startswith("4711 leaky (exited)  live")


def test_where_is_module_and_offset_without_source_lines():
    """The offset is that of the blamed frame, which addr2line takes."""
    stack = tuple(
        a_frame(frame.function, offset=0x100 + n, location=None) for n, frame in enumerate(a_stack())
    )
    lines = report_lines(a_report(sites=(a_site(location=None, stack=stack),)))
    assert lines[2].endswith("leak_here leaky+0x101")


def test_frames_without_names_have_address_or_kind():
    """By address, kind, and whether they are inlined."""
    stack = (
        a_frame(None, location=None),
        a_frame(None, module=None, offset=None, location=None, kind="unknown", address=0xDEAD),
        a_frame("Main.Leak()", module=None, offset=None, location=None, kind="jit"),
        a_frame("small", inlined=True),
    )
    site = a_site(None, module=None, location=None, stack=stack, oldest_age_s=None)
    lines = report_lines(a_report(sites=(site,)))
    assert lines[2].split()[-3:] == ["-", "[unknown]", "-"]
    assert lines[4:] == [
        "      0x555555555139  leaky+0x1139",
        "      0xdead  [unknown]",
        "      Main.Leak()  [jit]",
        "      small  leaky (inlined)  /src/leaky.c:23",
    ]


def test_long_names_are_cut_on_a_terminal_and_whole_in_a_pipe():
    """`bpfleakctl top | grep` must find them."""
    name, path = "std::vector<" + "x" * 300 + ">", "/src/" + "d/" * 100 + "leaky.cpp:23"
    report = a_report(sites=(a_site(name, location=path, stack=(a_frame(name, location=path),)),))
    row, _why, frame = report_lines(report)[2:]
    assert "std::vector<…>" in row
    assert row.endswith("leaky.cpp:23")
    assert frame.endswith("leaky.cpp:23")
    row, _why, frame = report_lines(report, columns=None)[2:]
    assert name in row
    assert path in row
    assert name in frame
    assert path in frame


_texts = st.none() | st.text(st.characters(exclude_categories=()), max_size=120) | st.just(HOSTILE)


@given(
    function=_texts,
    module=_texts,
    location=_texts,
    comm=_texts.filter(lambda text: text is not None),
    figures=st.integers(0, 2**40),
    columns=st.integers(80, 200) | st.none(),
)
def test_any_name_fits_and_does_no_harm(function, module, location, comm, figures, columns):
    """`drawn` checks that nothing but printable characters comes out, and no line is too long."""
    frame = a_frame(function, module=module, location=location)
    site = a_site(
        function,
        module=module,
        location=location,
        stack=(frame,),
        live_bytes=figures,
        growth_bytes_per_s=-float(figures),
        oldest_age_s=figures / 1e4,
    )
    process = a_process(comm=comm, mode=comm, live_bytes=figures)
    report_lines(a_report(process=process, sites=(site, site), losses={comm: 1}), columns=columns, stacks=1)


def test_markup_in_names_is_shown_as_it_is():
    """`[red]` is a name here, and `:smile:` too."""
    lines = report_lines(a_report(process=a_process(comm="[red]x[/red] :smile:")))
    assert "[red]x[/red] :smile:" in lines[0]


def test_several_processes_one_under_the_other():
    """With a line between them; if there are none, with a hint what to do."""
    lines = report_lines(a_report(23), a_report(101), stacks=0)
    assert [line.split()[0] if line else "" for line in lines][::5] == ["23", "101"]
    assert lines[4] == ""
    assert report_lines() == ["no process is traced: bpfleakctl attach PID"]


# -- the others --------------------------------------------------------------------------------------------


def test_ps_is_a_row_a_process():
    """And the losses below the table."""
    ended = a_process(101, comm=HOSTILE, state=ProcessState.EXECED, live_bytes=2**40, live_count=3_999_999)
    lines = drawn(
        processes_view(
            [
                a_traced_process(23, load_percent=4.1, process_verdict=a_process_verdict()),
                a_traced_process(
                    101, process=ended, losses={"x": 7}, load_percent=0.0, limited="dear " + HOSTILE
                ),
            ],
            width=80,
        )
    )
    assert " ".join(lines[0].split()) == "pid comm verdict live growth/s sites for mode state"
    assert " ".join(lines[1].split()) == "23 leaky leak 4.77 MiB +7.82 KiB/s 17 3m31s exact traced"
    assert lines[2].endswith("exact execed")
    assert lines[3] == "101 missed: 7 x"
    assert lines[4] == "23 tracing costs it 4.1% of a core"
    assert lines[5].startswith("101 tracing costs it nothing of a core; limited: dear")
    assert drawn(processes_view([])) == ["no process is traced: bpfleakctl attach PID"]


def test_watched_processes_are_a_row_each():
    """And why some cannot be traced below the table."""
    refused = a_watched_process(
        101, comm=HOSTILE, state=WatchState.REFUSED, reason="a Go program " + HOSTILE, next_look_s=None
    )
    lines = drawn(watched_view([a_watched_process(), refused]))
    assert " ".join(lines[0].split()) == "watched comm anonymous growth/s windows next look mode state"
    assert " ".join(lines[1].split()) == "4711 leaky 73.4 MiB +2.93 KiB/s 2 in 9m01s auto paused"
    assert lines[2].endswith("auto refused")
    assert lines[3].startswith("101 not attached: a Go program")
    assert drawn(watched_view([])) == ["no process is watched"]


def test_a_failed_check_has_its_fix_below():
    """Whatever the words are."""
    checks = [
        Check("kernel", CheckStatus.OK, "6.18"),
        Check("bpffs", CheckStatus.FAIL, "not mounted " + HOSTILE, "mount -t bpf bpf /sys/fs/bpf"),
    ]
    lines = drawn(checks_view(checks))
    assert lines[0].split() == ["ok", "kernel", "6.18"]
    assert lines[1].startswith("fail  bpffs   not mounted [red]")
    assert lines[-1].strip() == "→ mount -t bpf bpf /sys/fs/bpf"


def test_attach_and_detach_are_a_line():
    """With all that the brief answer is about."""
    assert attached_line(a_traced_process()) == (
        "attached to 4711 leaky /usr/bin/leaky by session, 2 functions probed (free, malloc)"
    )
    (probe, *_others) = a_traced_process().probes
    many = tuple(replace(probe, function=f"mi_{number:02}") for number in range(40))
    assert attached_line(a_traced_process(probes=many)).endswith(
        "40 functions probed (" + ", ".join([f"mi_{number:02}" for number in range(12)]) + ", …)"
    )
    assert detached_line(a_traced_process()) == (
        "detached from 4711 leaky after 3m31s, 4.77 MiB live in 10,007 blocks"
    )
    hostile = a_traced_process(process=a_process(comm=HOSTILE, exe=HOSTILE))
    assert attached_line(hostile).isprintable()
    assert detached_line(hostile).isprintable()


def test_json_is_ascii():
    """A terminal gets nothing but printable characters, and a parser the same names back."""
    text = json_text(a_report(process=a_process(comm=HOSTILE)))
    assert text.isascii()
    assert all(line.isprintable() for line in text.split("\n"))


@pytest.mark.parametrize(
    ("environ", "colour"), [({"TERM": "xterm"}, True), ({"TERM": "xterm", "NO_COLOR": "1"}, False)]
)
def test_no_color_is_respected(environ, colour):
    """Bold may stay (no-color.org speaks of colour)."""
    stream = Terminal()
    console = make_console(stream, environ)
    console.print(reports_view([a_report(losses={"live_full": 1})], width=80, stacks=1))
    assert ("\x1b[33m" in stream.getvalue()) is colour


def test_a_pipe_has_no_width():
    """Unless COLUMNS sets it."""
    assert fitting_width(make_console(io.StringIO(), {})) is None
    assert fitting_width(make_console(io.StringIO(), {"COLUMNS": "100"})) == 100
