"""Function names on the terminal."""

from __future__ import annotations

import pytest

from bpfleakd.cli.render.words import readable_function


@pytest.mark.parametrize(
    ("demangled", "shown"),
    [
        (
            "shop::remember(long, std::__cxx11::basic_string<char, std::char_traits<char>, "
            "std::allocator<char> > const&)",
            "shop::remember(long, std::string const&)",
        ),
        (
            "std::__cxx11::list<int, std::allocator<int> >::push_back(int&&)",
            "std::list<int, std::allocator<int> >::push_back(int&&)",
        ),
        ("main", "main"),
        ("evil\x1b[2J", "evil\\x1b[2J"),
    ],
)
def test_standard_types_have_their_everyday_names(demangled, shown):
    """And nothing in a name reaches the terminal as it is."""
    assert readable_function(demangled) == shown
