"""The module that a method compiled at run time belongs to.

Its name in a perf map determines it:

    void [System.Private.CoreLib] System.IO.Path::Join(…)[Tier0]        .NET: the assembly
    stub<7> GenerateResolveStub<GenerateResolveStub>                    .NET's stubs
    LazyCompile:*leak /srv/app.js:3:14, JS:~leak file:///srv/app.js     Node.js: the script
    int java.lang.String.hashCode(), java.lang.String::hashCode         Java: the package (or class)
    py::leak:/srv/app.py                                                Python: the file
    LeakyTemplate::render                                               others: what is before the last ::
"""

from __future__ import annotations

import re

from bpfleakd.analysis.managed_code import is_dotnet_stub
from bpfleakd.model.address_space import NO_MODULE
from bpfleakd.model.code.method import dotnet_assembly

STUBS = "(stubs)"

_V8 = re.compile(r"\w+:[*~^+]?[^ ]* (?:file://)?(.+?):\d+:\d+")
_PYTHON = re.compile(r"py::[^:]*:(.+)")
_JAVA = re.compile(r"(?:[\w$.\[\]]+ )?((?:[\w$]+\.)*)([\w$/+]+)(?:\.|::)[\w$<>]+(?:\(.*)?")


def module_of(name: str) -> str:
    """The module of a method, from its name in a perf map."""
    for pattern in (_PYTHON, _V8):
        if found := pattern.fullmatch(name):
            return found[1]
    if assembly := dotnet_assembly(name):
        return assembly
    if is_dotnet_stub(name):
        return STUBS
    if found := _JAVA.fullmatch(name):
        return found[1].rstrip(".") or found[2]
    scope, colons, _method = name.partition("(")[0].rpartition("::")
    return scope if colons and scope else NO_MODULE
