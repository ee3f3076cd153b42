"""Reports that were saved with `top --json`."""

from __future__ import annotations

from pathlib import Path

import msgspec

from bpfleakd.errors import BpfleakdError
from bpfleakd.model.report import LeakReport

__all__ = ["read_report"]


def read_report(path: Path) -> LeakReport:
    """Return a report from its file. BpfleakdError if it cannot be read, or is something else."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=LeakReport)
    except OSError as error:
        raise BpfleakdError(f"cannot read {path}: {error.strerror or error}") from error
    except msgspec.MsgspecError as error:
        raise BpfleakdError(
            f"{path} is not a report: {error}", "bpfleakctl top --pid N --json --limit 0 > FILE writes one"
        ) from error
