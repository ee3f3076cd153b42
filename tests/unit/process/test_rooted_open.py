"""Files and directories below another's root."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

import pytest

from bpfleakd.process.files import rooted_open
from bpfleakd.process.files.rooted_open import TargetRoot, root_of, seen_path
from bpfleakd.process.reading.apart import read_apart

OTHER = 4_711


@pytest.fixture
def root(tmp_path: Path) -> TargetRoot:
    return TargetRoot(os.getpid(), tmp_path)


def test_a_directory_in_which_the_user_may_make_files(tmp_path: Path, root: TargetRoot) -> None:
    """Their own, and one that all may write, as /tmp is."""
    (tmp_path / "tmp").mkdir(mode=0o755)
    os.close(root.open_writable_directory("tmp", os.geteuid()))
    (tmp_path / "tmp").chmod(0o1777)
    os.close(root.open_writable_directory("tmp", OTHER))


def test_a_directory_that_the_user_may_only_mount_there(tmp_path: Path, root: TargetRoot) -> None:
    """/etc, for instance, at /tmp of a namespace: root makes no files there for them."""
    (tmp_path / "tmp").mkdir(mode=0o755)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(PermissionError):
        root.open_writable_directory("tmp", OTHER)
    assert os.listdir("/proc/self/fd") == before


def test_links_lead_nowhere_outside(tmp_path: Path, root: TargetRoot) -> None:
    """An absolute link is one inside the root."""
    (tmp_path / "tmp").symlink_to("/etc")
    with pytest.raises(FileNotFoundError):
        root.open_writable_directory("tmp", os.geteuid())


def test_what_may_not_answer_later(tmp_path: Path, root: TargetRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file on a file system that is neither the kernel's own nor mounted by root of this machine."""
    (tmp_path / "file").write_text("")
    os.close(root.open_regular("file"))
    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(rooted_open, "is_kernels_own", lambda _kind: False)
    monkeypatch.setattr(rooted_open, "_devices", frozenset())
    with pytest.raises(OSError, match="may not answer"):
        root.open_regular("file")
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize("way", ["direct", "apart"])
def test_what_is_opened(tmp_path: Path, root: TargetRoot, way: str) -> None:
    """By this process, or by the one that reads for it: the same."""
    (tmp_path / "file").write_text("abc")
    (tmp_path / "link").symlink_to("/file")
    with read_apart() if way == "apart" else contextlib.nullcontext():
        for path, follow in (("file", False), ("/../file", False), ("link", True)):
            with os.fdopen(root.open_regular(path, follow=follow)) as file:
                assert file.read() == "abc"
        for path, number in (
            ("none", errno.ENOENT),
            ("link", errno.EINVAL),
            (".", errno.EINVAL),
            ("a\0b", errno.EINVAL),
            ("a" * 70_000, errno.ENAMETOOLONG),
        ):
            with pytest.raises(OSError, match=r"^\[Errno") as error:
                root.open_regular(path, follow=False)
            assert error.value.errno == number


@pytest.mark.parametrize(
    ("root_path", "expected"),
    [
        ("/", "/srv/jail/usr/lib/libz.so"),
        ("/srv/jail", "/usr/lib/libz.so"),
        ("/srv/ja", "/srv/jail/usr/lib/libz.so"),
        ("/srv/other", "/srv/jail/usr/lib/libz.so"),
    ],
)
def test_paths_below_the_root_of_a_chroot(root_path: str, expected: str) -> None:
    """A process sees them without the path of its root; others stay as they are."""
    assert seen_path("/srv/jail/usr/lib/libz.so", root_path) == expected


def test_the_path_of_a_root() -> None:
    """That of a process that has ended is unknown."""
    assert root_of(os.getpid()).path == "/"
    assert TargetRoot(OTHER, Path("/nowhere")).path == "/"
