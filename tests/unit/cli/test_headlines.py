"""Short names of call sites."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from rich.cells import cell_len

from bpfleakd.cli.render.headlines import headline, headline_place
from bpfleakd.cli.render.sites import site_layout
from bpfleakd.model.code.stack import Frame, FrameKind

from ..samples import a_site

ORDER = Frame(
    "shop::OrderService::validate(xmlDoc*)", "shop", 0x10, "/srv/shop/order.cpp:10", 1, FrameKind.NATIVE
)
OF_LIBRARY = replace(a_site("xmlNewDoc"), module="libxml2.so.2", location="tree.c:77", called_by=ORDER)


def test_the_programs_function_comes_first() -> None:
    """With its line; the library's function follows as the one it called."""
    assert headline(OF_LIBRARY) == "shop::OrderService::validate(xmlDoc*) → xmlNewDoc"
    assert headline_place(OF_LIBRARY) == "/srv/shop/order.cpp:10"
    own = a_site("remember")
    assert headline(own) == "remember"
    assert headline_place(own) == own.location


def test_a_program_without_symbols() -> None:
    """The place where its function begins stands for the name."""
    nameless = replace(ORDER, function=None, location=None, function_start=0x1230)
    site = replace(OF_LIBRARY, called_by=nameless)
    assert headline(site) == "shop+0x1230 → xmlNewDoc"
    assert headline_place(site) is None
    assert headline(replace(OF_LIBRARY, function=None)).endswith(" → libxml2.so.2")


@pytest.mark.parametrize("width", range(12, 60))
def test_the_room_is_kept(width: int) -> None:
    """Namespaces and parameters are cut, of both."""
    text = headline(OF_LIBRARY, width)
    assert cell_len(text) <= width
    assert " → " in text
    assert width < 30 or ("validate" in text and "xmlNewDoc" in text)


def test_objects_of_a_managed_heap_are_where_the_program_called() -> None:
    """The place beside the headline is that of its first function, with the type of the objects."""
    site = replace(OF_LIBRARY, type="xml.Doc")
    where = site_layout([site], None, estimates=False).where
    assert where == len("/srv/shop/order.cpp:10, xml.Doc")
