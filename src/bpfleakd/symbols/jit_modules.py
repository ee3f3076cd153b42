"""Counts the methods compiled at run time, by module.

A program that generates assemblies, scripts or classes again and again leaks their code, which no allocator
sees.
"""

from __future__ import annotations

from collections.abc import Iterable

from bpfleakd.model.address_space import JitModule

# The name under which modules beyond the limit are counted.
OTHER_MODULES = "(others)"
_MODULES_MAX = 10_000


class JitModules:
    """Sums by module, for at most `modules_max` modules."""

    def __init__(self, modules_max: int = _MODULES_MAX) -> None:
        self._modules_max = modules_max
        self._sums: dict[str, tuple[int, int]] = {}

    def add(self, methods: Iterable[tuple[str, int]]) -> None:
        """Count methods, each a module and the size of the code in bytes."""
        for module, size_bytes in methods:
            if module not in self._sums and len(self._sums) >= self._modules_max:
                module = OTHER_MODULES
            count, total_bytes = self._sums.get(module, (0, 0))
            self._sums[module] = (count + 1, total_bytes + size_bytes)

    def clear(self) -> None:
        """Start over."""
        self._sums.clear()

    def report(self) -> tuple[JitModule, ...]:
        """All modules, those with the most code first."""
        ordered = sorted(self._sums.items(), key=lambda item: (-item[1][1], item[0]))
        return tuple(JitModule(module, *sums) for module, sums in ordered)
