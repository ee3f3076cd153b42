"""Shows the answer of a command: as JSON, or drawn on the terminal.

rich takes longer to import than all the rest, so only what draws imports it: a command's `view` imports its
function of render/ when it is called.
"""

from __future__ import annotations

from collections.abc import Callable

from bpfleakd.cli.render.words import json_text


def show(answer: object, view: Callable[[int | None], object], *, as_json: bool) -> int:
    """Print the answer, or its view, which takes the width of the terminal (None: unlimited). Returns 0.

    The view is what rich can print.
    """
    if as_json:
        print(json_text(answer))
        return 0
    from bpfleakd.cli.render.console import fitting_width, make_console

    console = make_console()
    console.print(view(fitting_width(console)))
    return 0
