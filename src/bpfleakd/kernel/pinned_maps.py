"""The maps that the daemon opens, by name, with their key and value types."""

from __future__ import annotations

import numpy as np

from bpfleakd.kernel import abi
from bpfleakd.unwind.rules import PACKED_RULE_BYTES

# Only the programs read and write it.
OPAQUE = np.dtype("V1")
# A ring buffer has neither keys nor values.
_NOTHING = np.dtype("V0")

# Map name -> key and value type, for all that the daemon opens.
PINNED_MAPS: dict[str, tuple[np.dtype, np.dtype]] = {
    "processes": (np.dtype("u4"), abi.PROCESS),
    "slots": (np.dtype("u4"), np.dtype("u4")),
    "live": (np.dtype("u4"), np.dtype("u4")),
    "descriptors": (np.dtype("u4"), np.dtype("u4")),
    "sampling_curves": (np.dtype("u4"), abi.SAMPLING_CURVE),
    "sites": (abi.SITE_KEY, abi.SITE),
    "changed_sites": (_NOTHING, _NOTHING),
    "stacks": (abi.STACK_KEY, abi.STACK),
    "threads": (np.dtype("u8"), OPAQUE),
    "unproven_frees": (np.dtype("u8"), abi.UNPROVEN_FREES),
    "unwind_rules": (np.dtype("u4"), np.dtype(("V", PACKED_RULE_BYTES))),
    "unwind_shards": (np.dtype("u4"), np.dtype("u4")),
    "unwind_mappings": (np.dtype("u4"), np.dtype("u4")),
    "loaded_code": (abi.CODE_KEY, abi.LOADED_CODE),
    "code_ranges": (np.dtype("u4"), abi.CODE_RANGES),
    "space_events": (_NOTHING, _NOTHING),
    "probe_operands": (np.dtype("u4"), abi.PROBE_OPERANDS),
    "heartbeat": (np.dtype("u4"), abi.HEARTBEAT),
}

# About 16,000 events between two readings.
SPACE_EVENT_BYTES = 2 << 20
# With the header of a record in a ring.
SPACE_EVENTS_MAX = SPACE_EVENT_BYTES // (8 + abi.SPACE_EVENT.itemsize)
# About 32,000 sites; if more change at once, reading all is as fast.
CHANGED_SITE_BYTES = 1 << 20
