"""Translates errors of reading a process' files in /proc."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bpfleakd import errors


@contextmanager
def reading(pid: int, path: Path) -> Iterator[None]:
    """Raise errors of reading a process' file as NoSuchProcess, AccessDenied, or NotYet if it blocks."""
    try:
        yield
    except (FileNotFoundError, ProcessLookupError) as error:
        raise errors.NoSuchProcess(f"process {pid} has ended") from error
    except TimeoutError as error:
        raise errors.NotYet(str(error.strerror)) from error
    except PermissionError as error:
        raise errors.AccessDenied(
            f"{path} cannot be read: {error.strerror}", "the daemon needs CAP_SYS_PTRACE"
        ) from error
