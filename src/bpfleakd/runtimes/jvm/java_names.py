"""Names of Java's classes and methods, as people write them.

    shop/Buffers                                 take             shop.Buffers.take
    shop/Main$Order                              <init>           shop.Main$Order.<init>
    shop/Main$$Lambda$14+0x0000000800c01000      run              shop.Main$$Lambda.run

A class that is made at run time has a number, and an address if it is hidden, which differ from run to run.
"""

from __future__ import annotations

import re

from bpfleakd.printable import printable, shortened

__all__ = ["class_name", "file_name", "java_method_name"]

NAME_LIMIT_CHARACTERS = 512
_HIDDEN = re.compile(r"[+/]0x[0-9a-f]{1,16}$")
_NUMBERED = re.compile(r"(\$\$Lambda|\$Proxy|GeneratedMethodAccessor|GeneratedConstructorAccessor)(?:\$?\d+)")


def class_name(internal: str) -> str:
    """The name of a class, by the one that the machine uses; fit to be shown."""
    name = _HIDDEN.sub("", internal)
    return _shown(_NUMBERED.sub(r"\1", name).replace("/", "."))


def java_method_name(internal: str, name: str) -> str:
    """The name of a method with its class, without its parameters; fit to be shown."""
    return _shown(f"{class_name(internal)}.{name}")


def file_name(name: str) -> str:
    """The name of a source file, fit to be shown."""
    return _shown(name.rsplit("/", 1)[-1])


def _shown(text: str) -> str:
    return shortened(printable(text), NAME_LIMIT_CHARACTERS)
