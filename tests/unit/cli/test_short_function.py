"""Names of functions in little room."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from bpfleakd.cli.render.names import short_function, unbounded_function

REMEMBER = "shop::SessionStore::remember(long, std::string const&)"


@pytest.mark.parametrize(
    ("width", "short"),
    [
        (60, REMEMBER),
        (40, "shop::SessionStore::remember(…)"),
        (28, "shop::SessionStore::remember"),
        (25, "…SessionStore::remember"),
        (12, "…remember"),
        (5, "…mber"),
    ],
)
def test_method_and_class_stay(width, short):
    """Parameters go first, then namespaces from the left."""
    assert short_function(REMEMBER, width) == short


@pytest.mark.parametrize(
    ("name", "width", "short"),
    [
        ("std::vector<int, std::allocator<int> >::push_back(int&&)", 30, "std::vector<…>::push_back"),
        ("(anonymous namespace)::Foo::bar(int) const", 12, "…Foo::bar"),
        ("operator new(unsigned long)", 20, "operator new(…)"),
        ("a::B::operator()(int) const", 16, "a::B::operator()"),
        ("a::B::operator<(int) const", 16, "a::B::operator<"),
        ("std::ostream& std::operator<< <std::char_traits<char> >(int)", 12, "…rator<< <…>"),
        ("std::string shop::make<int>(int)", 20, "shop::make<…>"),
        ("<alloc::vec::Vec<T> as core::ops::Drop>::drop", 16, "…Vec<…>::drop"),
        ("Shop.Orders.Service.Handle(System.String)", 20, "…Service.Handle"),
        ("com.acme.shop.SessionStore.remember", 26, "…SessionStore.remember"),
        ("_RNvMNtCs1_4shop5storeNtB2_12SessionStore8remember", 24, "_RNvMNtCs1_4shop5storeN…"),
    ],
)
def test_names_of_languages(name, width, short):
    """How each language writes types, operators and traits."""
    assert short_function(name, width) == short


@given(st.text(alphabet="ab:.<>()[] ,*&~é漢", max_size=40), st.integers(0, 30))
def test_any_name_fits(name, width):
    """Names come from the traced program: no error, and never wider than requested."""
    assert cell_len(short_function(name, width)) <= width


def test_only_mangled_names_are_cut_in_a_pipe():
    """A demangled name is whole, however long; a mangled one would make all rows as wide."""
    long = f"std::vector<{'x' * 300}>::push_back"
    assert unbounded_function(long) == long
    assert unbounded_function("_RNvCs1_4shop3buy") == "_RNvCs1_4shop3buy"
    assert cell_len(unbounded_function("_ZN4shop" + "x" * 300)) == 60
