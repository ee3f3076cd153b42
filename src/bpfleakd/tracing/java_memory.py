"""Memory of a Java virtual machine outside of its heap, by purpose, from the site that allocates it.

The metaspace has classes and their methods; it grows with class loaders that are kept. The code cache has
compiled code, and stops growing when everything is compiled. Neither is part of the heap, and no count of
objects shows it.

What threads of the machine allocate while no Java code runs in them is its own: buffers and statistics of
the collector, of compilers. It grows slowly for as long as the load does, and no function of the program
can change that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import takewhile

from msgspec.structs import replace

from bpfleakd.model.code.stack import Frame, FrameKind
from bpfleakd.model.site import AllocationKind, SiteKey
from bpfleakd.model.verdict import ProcessVerdict, SiteVerdict, Verdict

_KINDS = (AllocationKind.COMMIT, AllocationKind.MMAP)
_LIBRARY = "libjvm.so"
_EXPLAINS_SHARE = 0.5


class JavaUse(StrEnum):
    """The purpose of a mapping of the virtual machine."""

    METASPACE = "metaspace"
    CODE_CACHE = "code cache"
    OWN = "the virtual machine's own"


_FUNCTIONS = {
    JavaUse.METASPACE: ("metaspace::", "Metaspace::"),
    JavaUse.CODE_CACHE: ("CodeHeap::", "CodeCache::"),
}
_WORDS = {
    JavaUse.METASPACE: "classes, by loaders that are kept",
    JavaUse.CODE_CACHE: "compiled methods",
    JavaUse.OWN: "no Java code is on the stack",
}
# They stand between the machine and the kernel.
_C_LIBRARIES = ("libc.so", "libc.musl", "ld-musl", "libpthread", "libstdc++.so")


def use_of(key: SiteKey, frames: Sequence[Frame]) -> JavaUse | None:
    """What a site's memory is for; None unless the virtual machine takes it for one of these."""
    if key.kind is AllocationKind.HEAP:
        return JavaUse.OWN if _is_machines_own(frames) else None
    if key.kind not in _KINDS:
        return None
    # The native code that Java called, innermost first.
    native = takewhile(lambda frame: frame.kind is FrameKind.NATIVE, frames)
    functions = [frame.function or "" for frame in native if frame.module == _LIBRARY]
    for use, names in _FUNCTIONS.items():
        if any(function.startswith(names) for function in functions):
            return use
    return None


def _is_machines_own(frames: Sequence[Frame]) -> bool:
    """Whether a whole stack has nothing but the machine's functions between the allocator and the thread."""
    modules = [frame.module or "" for frame in frames]
    if _LIBRARY not in modules or not modules[-1].startswith(_C_LIBRARIES):
        return False
    return all(module == _LIBRARY or module.startswith(_C_LIBRARIES) for module in modules)


def growth_by_use(sites: Iterable[tuple[SiteKey, Sequence[Frame], float]]) -> dict[JavaUse, float]:
    """The growth of sites, given in bytes per second, summed by purpose."""
    found: dict[JavaUse, float] = {}
    for key, frames, rate in sites:
        use = use_of(key, frames)
        if use is not None:
            found[use] = found.get(use, 0.0) + rate
    return found


def with_use(verdict: SiteVerdict, key: SiteKey, frames: Sequence[Frame]) -> SiteVerdict:
    """The verdict on a site, with the purpose of its memory at the beginning of the reason."""
    use = use_of(key, frames)
    return verdict if use is None else replace(verdict, reason=f"{use}: {verdict.reason}")


def with_uses(verdict: ProcessVerdict, growth: Mapping[JavaUse, float]) -> ProcessVerdict:
    """The verdict on a process; the reason names the purpose of most of its leak, if known."""
    if verdict.verdict is not Verdict.LEAK or not growth:
        return verdict
    use = max(growth, key=growth.__getitem__)
    if growth[use] < _EXPLAINS_SHARE * verdict.leak_bytes_per_s:
        return verdict
    return replace(verdict, reason=f"{verdict.reason}; most of that is {use}: {_WORDS[use]}")
