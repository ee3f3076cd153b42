"""Whether code belongs to an installed library or package, by the path of its file or source.

A library allocates because the program called it, so a report names both. Code that comes with a program
belongs to the program: files in /opt, in /srv, or in its own directory below /usr/lib.
"""

from __future__ import annotations

import re

# The loader's search path: /usr/lib/x86_64-linux-gnu/libxml2.so.2, /usr/local/lib/libz.so.1.
_LIBRARY = re.compile(r"(?:/usr(?:/local)?)?/lib(?:32|64|x32)?(?:/[\w.-]+-linux-\w+)?/[^/]+\.so(?:\.[\w.]+)*")
# Packages of Python and Node.js, wherever they are, and the commands that start the former.
_PACKAGE = re.compile(r"/(?:site-packages|dist-packages|node_modules)/")
_COMMAND = re.compile(r".*/bin/[^/.]+")
# C++ headers, crates of Rust, modules of Go.
_SOURCE = re.compile(r"/usr/(?:local/)?include/|.*/(?:\.cargo/registry|\.cargo/git|pkg/mod)/")


def is_installed_file(path: str) -> bool:
    """Whether a file of code, as its process sees it, belongs to a library or package."""
    path = path.removesuffix(" (deleted)")
    return bool(_LIBRARY.fullmatch(path) or _PACKAGE.search(path))


def is_installed_script(path: str) -> bool:
    """Whether a script is part of a package, like `/usr/bin/gunicorn`, which starts one."""
    return bool(_PACKAGE.search(path) or _COMMAND.fullmatch(path))


def is_installed_source(location: str) -> bool:
    """Whether source, by its path in debug information, is a library's that was compiled into the program."""
    return bool(_SOURCE.match(location) or _PACKAGE.search(location))
