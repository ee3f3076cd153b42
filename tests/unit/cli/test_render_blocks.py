"""The views of `bpfleakctl report` and `bpfleakctl top --group`, at 80 columns and in a pipe."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpfleakd.cli.render.blocks import blocks_view
from bpfleakd.cli.render.groups import groups_view
from bpfleakd.model.code.stack import FrameKind, StackEnd
from bpfleakd.model.groups import GroupedReport, GroupKey
from bpfleakd.model.process import ProcessState

from ..samples import (
    HOSTILE,
    a_block,
    a_blocks_report,
    a_frame,
    a_group,
    a_grouped_report,
    a_process,
    a_stack,
    some_site_blocks,
)
from .test_render import drawn


def report_lines(columns: int | None = 80, **changes: Any) -> list[str]:
    return drawn(blocks_view(a_blocks_report(**changes), width=columns), columns)


def group_lines(*reports: GroupedReport, by: GroupKey, columns: int | None = 80) -> list[str]:
    return drawn(groups_view(reports, by, width=columns), columns)


class TestReport:
    """Blocks."""

    def test_sums_stacks_and_blocks(self) -> None:
        """All of it is readable at 80 columns, and omissions are stated."""
        assert report_lines() == [
            "4711 leaky  live 4.77 MiB in 10,007 blocks  +7.82 KiB/s  attached 3m31s  exact",
            "outstanding: 2.00 MiB (2,097,178 B) in 5 blocks 1m00s old or older; 3 not listed",
            "",
            "site 5d41402abc4b2a76 heap: 2.00 MiB (2,097,155 B) in 3 blocks",
            "      malloc  libc.so.6+0x99e00",
            "      leak_here  leaky  /src/leaky.c:23",
            "      main  leaky  /src/leaky.c:101",
            "      _start  leaky+0x1061",
            "address             size    age thread      caller",
            "0x5555557592a0 1,048,576  3m13s 4711 worker leak_here /src/leaky.c:23",
            "0x5555558592a0 1,048,576  1m01s 4711 worker leak_here /src/leaky.c:23",
            "… 1 more blocks (--limit lists more)",
            "",
            "… 2 more call sites (--limit lists more)",
        ]

    def test_nothing_outstanding(self) -> None:
        """Of any age, or of the requested age."""
        nothing = {"live_bytes": 0, "live_count": 0, "sites": (), "left_out_sites": 0, "left_out_count": 0}
        assert report_lines(**nothing)[1:] == ["no outstanding blocks 1m00s old or older"]
        assert report_lines(**nothing, older_than_s=0.0)[1:] == ["no outstanding blocks"]

    def test_losses_and_the_end_are_shown(self) -> None:
        """As in top."""
        lines = report_lines(process=a_process(state=ProcessState.EXITED), losses={"live_full": 7})
        assert lines[0].startswith("4711 leaky (exited)")
        assert any(line.startswith("missed: 7 blocks not recorded") for line in lines)

    @pytest.mark.parametrize(
        ("frame", "words"),
        [
            (None, "[unknown]"),
            (a_frame(location=None), "leak_here leaky+0x1139"),
            (a_frame(None, location=None), "0x555555555139 leaky+0x1139"),
            (
                a_frame("Main.Leak()", module=None, offset=None, location=None, kind=FrameKind.JIT),
                "Main.Leak() [jit]",
            ),
        ],
    )
    def test_callers_without_a_line(self, frame: Any, words: str) -> None:
        """By what is known of them."""
        site = some_site_blocks(caller=frame, blocks=(a_block(),), left_out_count=0)
        assert report_lines(sites=(site,), left_out_sites=0)[-1].endswith(f"4711 worker {words}")

    def test_a_truncated_stack_states_the_reason(self) -> None:
        """Between the stack and the blocks."""
        lines = report_lines(sites=(some_site_blocks(truncated=StackEnd.DEPTH),))
        assert lines[8].startswith("      … truncated: the stack has more frames")

    def test_long_names_are_cut_on_a_terminal_and_whole_in_a_pipe(self) -> None:
        """Paths keep their end."""
        name, path = "f" * 100, f"/src/{'d' * 100}/leaky.c:23"
        site = some_site_blocks(caller=a_frame(name, location=path), stack=(), left_out_count=0)
        on_terminal = report_lines(sites=(site,), left_out_sites=0)[-1]
        assert "ffff" in on_terminal
        assert on_terminal.endswith("leaky.c:23")
        assert report_lines(None, sites=(site,), left_out_sites=0)[-1].endswith(f"{name} {path}")

    @given(
        text=st.text(st.characters(exclude_categories=()), max_size=60) | st.just(HOSTILE),
        figure=st.integers(0, (1 << 63) - 1),
        columns=st.integers(80, 200) | st.none(),
    )
    def test_any_name_does_no_harm(self, text: str, figure: int, columns: int | None) -> None:
        """`drawn` checks that only printable characters come out, and no line is too long."""
        frame = a_frame(text, module=text, location=text)
        blocks = (a_block(figure, size_bytes=figure % (1 << 40), comm=text[:15]),)
        site = some_site_blocks(caller=frame, blocks=blocks, stack=(frame,), live_bytes=figure)
        report_lines(columns, process=a_process(comm=text), sites=(site,))


class TestGroups:
    """`top --group`."""

    def test_a_row_a_function(self) -> None:
        """The figures, the number of sites, and the name; [unknown] for functions without one."""
        groups = (a_group(), a_group(None, live_bytes=23, live_count=1, growth_bytes_per_s=0.0, sites=("x",)))
        assert group_lines(a_grouped_report(groups=groups), by=GroupKey.FUNCTION) == [
            "4711 leaky  live 4.77 MiB in 10,007 blocks  +7.82 KiB/s  attached 3m31s  exact",
            "   growth/s     live     count  sites function",
            "+7.73 KiB/s 2.86 MiB     4,211      2 leak_here",
            "      0 B/s     23 B         1      1 [unknown]",
        ]

    def test_a_row_a_thread(self) -> None:
        """By tid and name; growth is not known."""
        unknown = {"allocated_bytes": None, "allocated_count": None, "growth_bytes_per_s": None}
        groups = (a_group("4712", comm="worker", **unknown), a_group(None, live_bytes=-23, **unknown))
        lines = group_lines(a_grouped_report(groups=groups), by=GroupKey.THREAD)
        assert lines[2] == "          - 2.86 MiB     4,211      2 4712 worker"
        assert lines[3].endswith("-23 B     4,211      2 [freed while counting]")

    def test_a_row_a_module(self) -> None:
        """By the file's name; the path is in the JSON."""
        lines = group_lines(a_grouped_report(groups=(a_group("/usr/lib/libleak.so.1"),)), by=GroupKey.MODULE)
        assert lines[2].endswith(" 2 libleak.so.1")

    def test_a_stack_with_all_its_frames(self) -> None:
        """Below its row, and why it is not whole."""
        group = a_group("5d41402abc4b2a76", stack=a_stack(), truncated=StackEnd.DEPTH)
        lines = group_lines(a_grouped_report(groups=(group,)), by=GroupKey.STACK)
        assert lines[2].endswith(" 2 5d41402abc4b2a76")
        assert [line.split()[0] for line in lines[3:]] == ["malloc", "leak_here", "main", "_start", "…"]

    def test_nothing_to_group(self) -> None:
        """Why, as in top; and no process at all."""
        report = a_grouped_report(process=a_process(live_count=0), groups=())
        assert "were freed again" in " ".join(group_lines(report, by=GroupKey.THREAD))
        assert group_lines(by=GroupKey.THREAD) == ["no process is traced: bpfleakctl attach PID"]

    def test_several_processes(self) -> None:
        """Below each other, with the losses of each."""
        reports = (a_grouped_report(23), a_grouped_report(101, losses={"live_full": 7}))
        lines = group_lines(*reports, by=GroupKey.FUNCTION)
        assert [line.split()[0] if line else "" for line in lines][:5:4] == ["23", "101"]
        assert lines[5].startswith("missed: 7")

    @given(
        text=st.text(st.characters(exclude_categories=()), max_size=120) | st.just(HOSTILE),
        by=st.sampled_from([by for by in GroupKey if by is not GroupKey.SITE]),
        columns=st.integers(80, 200) | st.none(),
    )
    def test_any_name_fits_and_does_no_harm(self, text: str, by: GroupKey, columns: int | None) -> None:
        """`drawn` checks it."""
        group = a_group(text, comm=text, stack=(a_frame(text, module=text, location=text),))
        group_lines(a_grouped_report(groups=(group,)), by=by, columns=columns)
