"""Settings for all tests."""

from __future__ import annotations

import signal

# Background commands of a script ignore Ctrl-C; so would the programs that the tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
