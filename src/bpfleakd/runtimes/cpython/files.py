"""Whether a Python file belongs to the interpreter's own library, an installed package, or the program."""

from __future__ import annotations

import re

# <frozen importlib._bootstrap>, <frozen zipimport>; and code that typing, dataclasses or collections
# generate.
_OWN = re.compile(r"<frozen [\w.]+>|<shim>|<__array_function__ internals>")
_PACKAGE = re.compile(r"/(?:site|dist)-packages/([^/]+)")
_LIBRARY = re.compile(r"/lib(?:64)?/python3(?:\.\d+t?)?(?:\.zip)?/")


def module_of(file: str, interpreter_module: str) -> str:
    """An installed file's package, `interpreter_module` for the standard library, else the file's name."""
    package = _PACKAGE.search(file)
    if package:
        return package[1].removesuffix(".py")
    if _OWN.fullmatch(file) or _LIBRARY.search(file):
        return interpreter_module
    name = file.rsplit("/", 1)[-1]
    return name.removesuffix(".py") or name or file
