"""What a script is a part of: Node.js itself, an installed package, or the program."""

from __future__ import annotations

import re

__all__ = ["file_of", "module_of"]

_PACKAGE = re.compile(r"(?<=/node_modules/)((?:@[^/]+/)?[^/]+)/")
_OWN = re.compile(r"node:[\w/.-]+|(?:evalmachine|internal)[\w/.:<>-]*")


def module_of(script: str) -> str:
    """An installed file's package, `node` for what comes with Node.js, else the file's name."""
    if _OWN.fullmatch(script):
        return "node"
    packages = _PACKAGE.findall(script)
    return packages[-1] if packages else file_of(script)


def file_of(script: str) -> str:
    """The last part of a path or URL; a module of Node.js has its name."""
    return script if script.startswith("node:") else script.rsplit("/", 1)[-1] or script
