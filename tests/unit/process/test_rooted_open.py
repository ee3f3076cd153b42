"""Directories below another's root, in which files are made for that user."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bpfleakd.process.rooted_open import open_directory_below

OTHER = 4_711


def test_a_directory_in_which_the_user_may_make_files(tmp_path: Path) -> None:
    """Their own, and one that all may write, as /tmp is."""
    (tmp_path / "tmp").mkdir(mode=0o755)
    os.close(open_directory_below(tmp_path, "tmp", os.geteuid()))
    (tmp_path / "tmp").chmod(0o1777)
    os.close(open_directory_below(tmp_path, "tmp", OTHER))


def test_a_directory_that_the_user_may_only_mount_there(tmp_path: Path) -> None:
    """/etc, for instance, at /tmp of a namespace: root makes no files there for them."""
    (tmp_path / "tmp").mkdir(mode=0o755)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(PermissionError):
        open_directory_below(tmp_path, "tmp", OTHER)
    assert os.listdir("/proc/self/fd") == before


def test_links_lead_nowhere_outside(tmp_path: Path) -> None:
    """An absolute link is one inside the root."""
    (tmp_path / "tmp").symlink_to("/etc")
    with pytest.raises(FileNotFoundError):
        open_directory_below(tmp_path, "tmp", os.geteuid())
