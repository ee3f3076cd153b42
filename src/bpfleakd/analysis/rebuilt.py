"""Call sites of two builds of a program, matched by the names of their functions.

A rebuilt file has another build-id and moved code, so every call site with a frame in it has another
fingerprint. Rules:
  - A file counts as rebuilt only if both reports have its build-id, and these differ.
  - Frames in such files are identified by function, all others as in the fingerprint: by file and offset.
  - A frame in such a file without a name is identified by its offset, which is the same only if nothing
    moved.
  - Files are identified by name, without directories and versions: shop-1.2/libcart.so.1.2 is libcart.so.
  - Inlined frames and the suffixes of clones (.isra.0, .cold) are the compiler's choice, which may change. So
    several call sites of one function, on different lines, become one.
"""

from __future__ import annotations

import re
from posixpath import basename

from bpfleakd.model.code.stack import Frame, FrameKind
from bpfleakd.model.report import LeakReport, SiteReport

# The identity of a call site with a rebuilt file.
NameKey = tuple[object, ...]

# https://gcc.gnu.org/onlinedocs/gcc/Optimize-Options.html: names of copied or split functions; a demangler
# puts the suffixes into brackets.
_CLONE = re.compile(r"(?:\.(?:isra|constprop|part|lto_priv|llvm)\.\d+|\.cold| \[clone [^\]]*\])+$")


def modules_built_anew(before: LeakReport, after: LeakReport) -> frozenset[str]:
    """The names of files that are in both reports, in different builds."""
    old, new = _builds(before), _builds(after)
    return frozenset(name for name in old.keys() & new.keys() if old[name].isdisjoint(new[name]))


def key_by_names(site: SiteReport, built_anew: frozenset[str]) -> NameKey | None:
    """The identity of the site in another build; None if none of its files was rebuilt."""
    frames = [frame for frame in site.stack if not frame.inlined]
    if not any(_module_name(frame.module) in built_anew for frame in frames):
        return None
    return (site.kind, *(_identity(frame, built_anew) for frame in frames))


def _identity(frame: Frame, built_anew: frozenset[str]) -> tuple[str, str | int | None]:
    name = _module_name(frame.module)
    if frame.kind is FrameKind.NATIVE and (name not in built_anew or frame.function is None):
        return name, frame.offset
    return name, _CLONE.sub("", frame.function) if frame.function else None


def _builds(report: LeakReport) -> dict[str, set[str]]:
    builds: dict[str, set[str]] = {}
    for module, build_id in report.build_ids.items():
        builds.setdefault(_module_name(module), set()).add(build_id)
    return builds


def _module_name(module: str | None) -> str:
    name = basename(module or "")
    stem, so, _version = name.partition(".so.")
    return f"{stem}.so" if so else name
