"""Reports saved with `top --json`."""

from __future__ import annotations

from pathlib import Path

import msgspec

from bpfleakd.errors import BpfleakdError
from bpfleakd.model.report import LeakReport


def read_report(path: Path) -> LeakReport:
    """Read a report. Raises BpfleakdError if the file cannot be read, or is not a report."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=LeakReport)
    except OSError as error:
        raise BpfleakdError(f"cannot read {path}: {error.strerror or error}") from error
    except msgspec.MsgspecError as error:
        raise BpfleakdError(
            f"{path} is not a report: {error}", "bpfleakctl top --pid N --json --limit 0 > FILE writes one"
        ) from error
