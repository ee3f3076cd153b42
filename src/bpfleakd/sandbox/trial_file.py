"""A file for testing parsers before a process is locked down."""

from __future__ import annotations

import sys
from importlib.util import find_spec

# A library of bpfleakd's dependencies with symbols and call frame information: small, since every zygote
# reads it.
TRIAL_FILE = getattr(find_spec("msgspec._core"), "origin", None) or sys.executable
