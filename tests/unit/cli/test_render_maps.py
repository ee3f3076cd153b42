"""The view of `bpfleakctl maps`, at 80 columns and in a pipe."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bpfleakd.cli.render.maps import maps_view
from bpfleakd.model.address_space import JitModule, MemoryShares, MemoryUse, UseSummary
from bpfleakd.model.container import ContainerBill, ContainerKind, ContainerLine

from ..samples import HOSTILE, an_address_space
from .test_render import drawn


def maps_lines(columns: int | None = 80, **changes: Any) -> list[str]:
    return drawn(maps_view(an_address_space(**changes), width=columns), columns)


def test_memory_by_use_then_its_explanation_then_the_modules():
    """All of it is readable at 80 columns; the largest resident use first, and the sums below."""
    assert maps_lines() == [
        "4711 leaky  attached 3m31s  page tables 88.0 KiB",
        "resident 16.2 MiB (peak 18.1 MiB)  virtual 293 MiB",
        "memory grows +29.3 KiB/s: 100% of it is freed memory that the allocator keeps",
        "  memory      growth kind",
        "8.58 MiB +29.3 KiB/s heap_free 2 arenas of glibc",
        "7.64 MiB           - file",
        "",
        "resident    growth  virtual    growth    dirty regions use",
        "10.5 MiB +4.77 MiB 12.4 MiB +6.68 MiB 10.5 MiB       3 heap",
        "5.73 MiB -12.0 KiB 23.8 MiB         -  204 KiB      29 files, libraries",
        "     0 B         -  257 MiB         -      0 B       2 reserved",
        "16.2 MiB +4.76 MiB  293 MiB +6.68 MiB 10.7 MiB      34 all",
        "",
        "explained: 72.7% of the resident memory",
        "resident",
        "4.77 MiB heap: live blocks since the attach",
        "1.00 MiB mmap: mapped since the attach, by call sites",
        " 300 KiB commit: committed since the attach, by call sites",
        "5.72 MiB held by the allocator: freed, older than the attach, or its own data",
        "4.43 MiB the rest: not attributed to call sites",
        "",
        "compiled at run time since the attach",
        "     code methods module",
        "+1.24 MiB   2,003 Templates",
        "+4.89 KiB       7 /srv/app.js",
    ]


def test_swap_has_a_column_where_there_is_any():
    """In place of dirty memory, which every process has."""
    uses = (UseSummary(MemoryUse.HEAP, 1, 4096, 0, 0, 4096, 0, 0),)
    lines = maps_lines(uses=uses, swap_bytes=4096)
    assert "swap 4.00 KiB" in lines[1]
    heads = [line.split() for line in lines]
    assert ["resident", "growth", "virtual", "growth", "swap", "regions", "use"] in heads


def test_only_the_first_modules_are_shown():
    """The number of further ones is stated; a long path keeps its end, the most significant part."""
    modules = tuple(JitModule(f"/{'x' * 100}/{n}.js", 1, 1) for n in range(13))
    lines = maps_lines(jit_modules=modules)
    assert lines[-1] == "… 3 more modules"
    assert lines[-2].endswith("x/9.js")
    assert modules[9].module in maps_lines(None, jit_modules=modules)[-2]
    assert not any("compiled" in line for line in maps_lines(jit_modules=()))


def test_losses_are_shown():
    """Before the figures that lack it."""
    assert maps_lines(losses={"mappings_left_out": 23, "event_full": 0})[2] == "missed: 23 mappings left out"


_figures = st.integers(-(2**50), 2**50)


@given(
    figures=st.lists(_figures, min_size=6, max_size=6),
    name=st.text(st.characters(exclude_categories=()), max_size=120) | st.just(HOSTILE),
)
def test_any_figures_and_names_fit_and_do_no_harm(figures, name):
    """`drawn` checks that nothing but printable characters comes out, and no line is too long."""
    uses = tuple(UseSummary(use, 99_999, *(abs(n) for n in figures[:4]), *figures[4:]) for use in MemoryUse)
    maps_lines(
        comm=name[:15],
        uses=uses,
        virtual_bytes=abs(figures[0]),
        resident_bytes=abs(figures[1]),
        peak_resident_bytes=abs(figures[2]),
        shares=MemoryShares(*(abs(n) for n in figures[:5]), 0.5),
        jit_modules=(JitModule(name, abs(figures[0]), abs(figures[1])),),
    )


def test_a_container_has_a_separate_table():
    """Use and limit, growth, and the share of this process."""
    lines = (
        ContainerLine(ContainerKind.FILE, 40 << 20, 1_048_576.0, None),
        ContainerLine(ContainerKind.ANON, 20 << 20, 0.0, 15 << 20),
    )
    bill = ContainerBill("/shop\x1b[31m", 2, 64 << 20, 60 << 20, lines, "the container grows")
    assert maps_lines(container=bill)[6:13] == [
        "",
        "container: 60.0 MiB of 64.0 MiB used (94%)",
        "the container grows",
        "  memory      growth  process kind in control group /shop\\x1b[31m",
        "40.0 MiB +1.00 MiB/s        - file",
        "20.0 MiB           - 15.0 MiB anon",
        "",
    ]
