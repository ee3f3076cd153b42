"""Names of classes: demangled, and the contents of the standard library's own blocks."""

from __future__ import annotations

import pytest

from bpfleakd.symbols.cxx.class_names import class_name, type_name_symbol
from bpfleakd.symbols.libiberty import demangled, demangler

NAMES = [
    ("N4shop7SessionE", "shop::Session"),
    ("St23_Sp_counted_ptr_inplaceIN4shop7SessionESaIvELN9__gnu_cxx12_Lock_policyE2EE", "shop::Session"),
    (
        "NSt3__120__shared_ptr_emplaceISt4pairIiN4shop7SessionEENS_9allocatorIS4_EEEE",
        "std::pair<int, shop::Session>",
    ),
    (
        "St15_Sp_counted_ptrIPN4shop7SessionELN9__gnu_cxx12_Lock_policyE2EE",
        "std::shared_ptr<shop::Session> counts",
    ),
    ("N12_GLOBAL__N_16HiddenE", "(anonymous namespace)::Hidden"),
    ("", None),
    ("no name of a class", None),
    ("N999shop7SessionE", None),
]


@pytest.mark.parametrize(("mangled", "expected"), NAMES)
def test_the_class_of_a_name(mangled, expected):
    """The name in the type information, as the sandbox demangles it."""
    if demangler() is None:
        pytest.skip("needs binutils")
    assert class_name(demangled(type_name_symbol(mangled))) == expected


def test_arguments_with_brackets_of_all_kinds():
    """The first argument ends at its own end, not at the first comma."""
    wrapped = "typeinfo name for std::_Sp_counted_ptr_inplace<A<(1, 2), int[3], B<int> >, C, (D)2>"
    assert class_name(wrapped) == "A<(1, 2), int[3], B<int> >"
