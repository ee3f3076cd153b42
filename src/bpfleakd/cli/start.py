"""Where both commands start: until their modules are imported, Ctrl-C ends them without a traceback."""

from __future__ import annotations

import signal


def bpfleakd() -> int:
    """Run the daemon; its event loop handles Ctrl-C as soon as there is anything to remove."""
    _end_at_ctrl_c()
    from bpfleakd.cli.bpfleakd import main

    return main()


def bpfleakctl() -> int:
    """Run the user's command."""
    _end_at_ctrl_c()
    from bpfleakd.cli.bpfleakctl import main

    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return main()


def _end_at_ctrl_c() -> None:
    # A shell without job control lets its background commands ignore SIGINT.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
