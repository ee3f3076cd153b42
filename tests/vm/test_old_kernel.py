"""A kernel that is too old is refused clearly, by `doctor` and the daemon: `make test-vm KERNEL=5.10`."""

from __future__ import annotations

import platform
import re
import subprocess
import sys

import pytest

from ..kernel.daemons import DaemonFailed

RELEASE = tuple(int(part) for part in re.findall(r"\d+", platform.release())[:2])

pytestmark = pytest.mark.skipif(RELEASE >= (5, 15), reason="this kernel is new enough")

UNSUPPORTED = 10


def test_doctor_says_what_is_wrong_and_what_to_do() -> None:
    """One line of the kernel, with the way out; nothing ends in a traceback."""
    command = [sys.executable, "-m", "bpfleakd.cli.bpfleakctl", "doctor"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "boot a newer kernel" in done.stdout
    assert platform.release() in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_the_daemon_does_not_start(daemon) -> None:
    """Its exit code says that the kernel is the reason."""
    with pytest.raises(DaemonFailed) as failed:
        daemon()
    assert failed.value.exit_code == UNSUPPORTED
    assert "Traceback" not in failed.value.log
    assert "is too old: bpfleakd needs Linux 5.15 or newer" in failed.value.log
