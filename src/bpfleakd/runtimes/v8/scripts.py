"""The module of a script: Node.js itself, an installed package, or the program."""

from __future__ import annotations

import re

_PACKAGE = re.compile(r"(?<=/node_modules/)((?:@[^/]+/)?[^/]+)/")
_OWN = re.compile(r"node:[\w/.-]+|(?:evalmachine|internal)[\w/.:<>-]*")


def module_of(script: str) -> str:
    """The package of an installed file; `node` for scripts of Node.js itself; else the name of the file."""
    if _OWN.fullmatch(script):
        return "node"
    packages = _PACKAGE.findall(script)
    return packages[-1] if packages else file_of(script)


def file_of(script: str) -> str:
    """The last part of a path or URL; for a module of Node.js, its name."""
    return script if script.startswith("node:") else script.rsplit("/", 1)[-1] or script
