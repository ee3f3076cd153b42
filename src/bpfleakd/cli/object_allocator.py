"""The allocator of the daemon's own Python objects."""

from __future__ import annotations

import os
import sys

_VARIABLE = "PYTHONMALLOC"


def restart_with_malloc() -> None:
    """Run this program again, once, with its objects in the C heap, unless the environment chose already.

    Python's own allocator gives memory back in pieces of a megabyte, and only if a piece is empty. A process
    with 32,768 call sites left 20 of them behind, each for a few objects that were made meanwhile. From the C
    heap `malloc_trim` gives back every free page. The allocator is chosen when Python starts (PYTHONMALLOC);
    programs that the daemon starts choose theirs.
    """
    if os.environ.pop(_VARIABLE, None) is None and not sys.flags.ignore_environment:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, _VARIABLE: "malloc"})
