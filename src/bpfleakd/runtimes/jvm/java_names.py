"""Names of classes and methods in Java's syntax.

    shop/Buffers                                 take             shop.Buffers.take
    shop/Main$Order                              <init>           shop.Main$Order.<init>
    shop/Main$$Lambda$14+0x0000000800c01000      run              shop.Main$$Lambda.run

Classes that are made at run time have a number, and hidden ones an address. Both differ from run to run, so
they are left out.
"""

from __future__ import annotations

import re

from bpfleakd.printable import printable, shortened

NAME_LIMIT_CHARACTERS = 512
_HIDDEN = re.compile(r"[+/]0x[0-9a-f]{1,16}$")
_NUMBERED = re.compile(r"(\$\$Lambda|\$Proxy|GeneratedMethodAccessor|GeneratedConstructorAccessor)(?:\$?\d+)")


def class_name(internal: str) -> str:
    """The printable name of a class, from the name that the JVM uses."""
    name = _HIDDEN.sub("", internal)
    return _shown(_NUMBERED.sub(r"\1", name).replace("/", "."))


def java_method_name(internal: str, name: str) -> str:
    """The printable name of a method with its class, without its parameters."""
    return _shown(f"{class_name(internal)}.{name}")


def file_name(name: str) -> str:
    """The printable name of a source file."""
    return _shown(name.rsplit("/", 1)[-1])


def _shown(text: str) -> str:
    return shortened(printable(text), NAME_LIMIT_CHARACTERS)
