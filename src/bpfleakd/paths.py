"""The path of the daemon's socket, for the daemon and its clients."""

from __future__ import annotations

from pathlib import Path

DEFAULT_SOCKET_PATH = Path("/run/bpfleakd/bpfleakd.sock")

# Overrides the path in the daemon and in bpfleakctl; the --socket option overrides it.
SOCKET_VARIABLE = "BPFLEAKD_SOCKET"
