"""Sums of compiled methods by module."""

from __future__ import annotations

from bpfleakd.model.address_space import JitModule
from bpfleakd.symbols.jit_modules import OTHER_MODULES, JitModules


def test_the_most_code_comes_first():
    """With methods and bytes; names break ties."""
    modules = JitModules()
    modules.add([("a", 10), ("b", 7), ("b", 4)])
    modules.add([("c", 10)])
    assert modules.report() == (JitModule("b", 2, 11), JitModule("a", 1, 10), JitModule("c", 1, 10))
    modules.clear()
    assert modules.report() == ()


def test_too_many_modules_are_counted_together():
    """A program that generates an assembly a second has no end of them."""
    modules = JitModules(modules_max=3)
    modules.add((f"generated{n}", 1) for n in range(23))
    modules.add([("generated0", 1)])
    assert modules.report()[0] == JitModule(OTHER_MODULES, 20, 20)
    assert modules.report()[1] == JitModule("generated0", 2, 2)
