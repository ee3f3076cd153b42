"""Requests about processes that are not traced."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from bpfleakd import errors
from bpfleakd.tracing.traced_processes import TracedProcesses


def test_one_that_is_not_traced():
    """The hint says how to."""
    with pytest.raises(errors.NotAttached) as failure:
        TracedProcesses().find(os.getpid())
    assert failure.value.hint == f"bpfleakctl attach {os.getpid()}"


def test_one_that_does_not_exist():
    """An attach would only give the same error."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with pytest.raises(errors.NoSuchProcess, match=f"there is no process {ended.pid}"):
        TracedProcesses().find(ended.pid)
