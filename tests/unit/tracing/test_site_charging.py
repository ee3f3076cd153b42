"""Which function is charged, and which sites are the same."""

from __future__ import annotations

import numpy as np

from bpfleakd.model.code.stack import Frame, FrameKind, NamedStack, RawStack, Stack, StackEnd
from bpfleakd.model.site import AllocationKind, SiteKey
from bpfleakd.table.site_table import SiteTable
from bpfleakd.tracing.site_charging import SiteCharging, SiteIdentity

from .doubles import counter_rows

MALLOC, WRAPPER = 0x10, 0x20


def heap(stack_id: int) -> SiteKey:
    return SiteKey(AllocationKind.HEAP, stack_id)


def named(*addresses: int, fingerprint: str, final: bool = True) -> NamedStack:
    frames = tuple(
        Frame("malloc" if a == MALLOC else f"f{a:x}", "shop", a, None, a, FrameKind.NATIVE) for a in addresses
    )
    return NamedStack(Stack(frames, (None,) * len(frames), None), fingerprint, final)


def table_of(*rows: tuple[int, int, int, int]) -> SiteTable:
    table = SiteTable(0)
    table.update(1, [heap(n) for n in range(1, 1 + len(rows))], counter_rows(list(rows)))
    return table


def test_sites_of_the_same_name_are_one() -> None:
    """Those with the same fingerprint, even if some names are still missing: by those that are known."""
    table, charging = table_of((9, 9, 9, 9), (9, 9, 9, 9), (9, 9, 9, 9)), SiteCharging()
    charging.settle({heap(1): named(MALLOC, 0x31, fingerprint="a")})
    assert charging.units(table) is None
    charging.settle({heap(3): named(MALLOC, 0x91, fingerprint="a", final=False)})
    assert leads(charging, table) == [0, 1, 0]
    charging.settle({heap(3): named(MALLOC, 0x91, fingerprint="late")})
    assert charging.units(table) is None
    assert charging.identities.keys() == {heap(1), heap(3)}


def test_names_that_never_come_make_nobody_else_wait() -> None:
    """Code of an unknown JIT: such sites are looked at ever more rarely, and the others get their turn."""
    count = 40
    table, charging = table_of(*[(9, 9, 9, 9)] * count), SiteCharging()
    rows = np.arange(count)
    seen: list[set[int]] = []
    for _ in range(20):
        wanted = charging.unsettled(table, rows)
        seen.append({key.stack_id for key in wanted})
        charging.settle({key: named(MALLOC, 0x31, fingerprint="?", final=False) for key in wanted})
    assert seen[0] | seen[1] == set(range(1, count + 1))
    assert [1 in looked for looked in seen].count(True) == 4
    assert leads(charging, table) == [0] * count
    assert charging.identities == {}


def test_sites_without_live_blocks_come_last() -> None:
    """Their identities are learnt, too, but take no more than half of the room."""
    table, charging = table_of(*[(9, 9, 9, 9)] * 6_000), SiteCharging()
    wanted = charging.unsettled(table, np.arange(3), np.arange(3, 6_000))
    assert [key.stack_id for key in wanted] == list(range(1, 33))
    while wanted:
        charging.settle({key: named(MALLOC, 0x31, fingerprint="a") for key in wanted})
        wanted = charging.unsettled(table, np.arange(3), np.arange(3, 6_000))
    assert len(charging.identities) == 2_048
    assert len(charging.rows_by_site(table)[AllocationKind.HEAP, "a"]) == 2_048
    assert charging.unsettled(table, np.arange(5_000, 5_001)) == [heap(5_001)]


def leads(charging: SiteCharging, table: SiteTable) -> list[int]:
    """The row that stands for each row."""
    units = charging.units(table)
    assert units is not None
    return units.lead.tolist()


def nameless(*places: tuple[int, int], build_id: str = "c0ffee") -> NamedStack:
    """Frames in a stripped file: where the call returns to, and where the function begins."""
    frames = tuple(
        Frame(None, "shop", at, None, 0x1000 + at, FrameKind.NATIVE, function_start=start)
        for at, start in places
    )
    malloc = Frame("malloc", "libc.so.6", MALLOC, None, MALLOC, FrameKind.NATIVE)
    return NamedStack(Stack((malloc, *frames), (None, *[build_id] * len(frames)), None), str(places), True)


def test_functions_without_names_are_told_by_where_they_begin() -> None:
    """Calls in one function of a stripped file are charged together; those of two files are not."""
    table, charging = table_of(*[(9, 9, 9, 9)] * 5), SiteCharging()
    charging.settle({heap(1): nameless((0x31, 0x30), (0x48, 0x40))})
    charging.settle({heap(2): nameless((0x37, 0x30), (0x48, 0x40))})
    charging.settle({heap(3): nameless((0x48, 0x40))})
    charging.settle({heap(4): nameless((0x31, 0x30), build_id="beef")})
    charging.settle({heap(5): named(MALLOC, 0x31, fingerprint="named")})
    functions = charging.functions(table)
    assert functions is not None
    assert functions.lead.tolist() == [0, 0, 2, 3, 4]
    assert charging.units(table) is None


def test_wrappers_without_names_are_not_charged() -> None:
    """The sum is what the callers of a wrapper in a stripped file keep, not what passes through it."""
    table, charging = table_of((9, 9, 9, 9), (9, 9, 9, 9), (0, 0, 99, 9)), SiteCharging()
    wrapper = (0x25, 0x20)
    sites = {
        heap(1): nameless(wrapper, (0x31, 0x30)),
        heap(2): nameless(wrapper, (0x37, 0x30)),
        heap(3): nameless(wrapper, (0x48, 0x40)),
    }
    stacks = {key: tuple(frame.address for frame in site.stack.frames) for key, site in sites.items()}
    charging.learn(table, lambda key: RawStack(stacks[key], StackEnd.BOTTOM))
    charging.settle(sites)
    functions = charging.functions(table)
    assert functions is not None
    assert functions.lead.tolist() == [0, 0, 2]


def test_an_identity_is_kept_over_a_restart() -> None:
    """The code that had the name may be gone by then."""
    charging = SiteCharging(identities={heap(1): SiteIdentity("a", "shop", "remember")})
    assert charging.fingerprint(heap(1)) == "a"
    charging.settle({heap(1): named(MALLOC, 0x31, fingerprint="b")})
    assert charging.fingerprint(heap(1)) == "a"


def test_wrappers_are_learnt_from_who_gives_back() -> None:
    """Another stack through the same call has freed all that it got."""
    table, charging = table_of((9, 9, 9, 9), (0, 0, 99, 9)), SiteCharging()
    stacks = {heap(1): (MALLOC, WRAPPER, 0x31, 0x40), heap(2): (MALLOC, WRAPPER, 0x32, 0x40)}
    site = named(*stacks[heap(1)], fingerprint="a")
    before = charging.charged(heap(1), site.stack.frames)
    charging.learn(table, lambda key: RawStack(stacks[key], StackEnd.BOTTOM))
    after = charging.charged(heap(1), site.stack.frames)
    assert [frame.function for frame in (before, after) if frame] == ["f20", "f31"]
    given_back = charging.charged(heap(2), named(*stacks[heap(2)], fingerprint="b").stack.frames)
    assert given_back == site.stack.frames[1]
