"""Files of suppressions: those of bpfleakd, and those that the configuration names."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path

from bpfleakd.analysis.suppressions import Suppressions, parse_suppressions
from bpfleakd.errors import ConfigError

_DEFAULTS = "defaults.supp"


def read_suppressions(paths: Iterable[Path]) -> Suppressions:
    """Read the patterns of bpfleakd's own file and of others. Raises ConfigError."""
    defaults = files(__name__).joinpath(_DEFAULTS).read_text(encoding="utf-8")
    return parse_suppressions(defaults, _DEFAULTS).joined(map(_read, paths))


def _read(path: Path) -> Suppressions:
    try:
        return parse_suppressions(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read: {error.strerror}", "see suppressions: in the configuration"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8", "suppression files must be text") from error
