"""bpfleakd's directories: who must own them, and the directories above."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from bpfleakd.private_directory import PrivateDirectory, make_private, refuse_foreign_path
from bpfleakd.state.reports import ReportStore

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away: run as root")

ME = [os.geteuid()]
NOBODY = 65534


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "above" / "ours"


def test_what_is_missing_is_made_for_us_alone(place):
    """Also what lies above."""
    make_private(place, ME)
    assert [stat.S_IMODE(path.stat().st_mode) & 0o077 for path in (place, place.parent)] == [0, 0o055]
    refuse_foreign_path(place, ME)


def test_a_link_in_its_place_is_refused(place, tmp_path):
    """Even if root owns it: its target may have another owner."""
    place.parent.mkdir()
    place.symlink_to(tmp_path)
    with pytest.raises(ValueError, match="is a symbolic link"):
        make_private(place, ME)


def test_a_link_of_ours_above_it_is_followed(tmp_path):
    """As /var/run is one, to /run."""
    (tmp_path / "real/ours").mkdir(parents=True)
    (tmp_path / "relative").symlink_to("./real/../real")
    (tmp_path / "absolute").symlink_to(tmp_path / "relative")
    refuse_foreign_path(tmp_path / "absolute" / "ours", ME)


def test_links_without_end_are_refused(tmp_path):
    """As the kernel does."""
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(ValueError, match="is a symbolic link"):
        refuse_foreign_path(tmp_path / "a" / "ours", ME)


@as_root
def test_a_link_of_another_user_is_refused(tmp_path):
    """It may lead elsewhere tomorrow."""
    (tmp_path / "real/ours").mkdir(parents=True)
    link = tmp_path / "theirs"
    link.symlink_to("real")
    os.lchown(link, NOBODY, NOBODY)
    with pytest.raises(ValueError, match="is a symbolic link"):
        refuse_foreign_path(link / "ours", ME)


@as_root
@pytest.mark.parametrize("which", ["itself", "above"])
def test_a_directory_of_another_user_is_refused(place, which):
    """Also one above: its owner can put another one in place of ours."""
    make_private(place, ME)
    os.chown(place if which == "itself" else place.parent, NOBODY, NOBODY)
    with pytest.raises(ValueError, match="belongs to another user"):
        make_private(place, ME)


def test_a_directory_that_others_write_is_refused_unless_it_is_sticky(place):
    """In /tmp others make entries, but cannot rename ours."""
    make_private(place, ME)
    place.parent.chmod(0o1777)
    make_private(place, ME)
    place.parent.chmod(0o777)
    with pytest.raises(ValueError, match="others can write it"):
        make_private(place, ME)


def test_no_file_goes_through_a_link(place, tmp_path):
    """No file is read, written or created through it."""
    (tmp_path / "elsewhere").mkdir()
    place.parent.mkdir()
    place.symlink_to(tmp_path / "elsewhere")
    directory = PrivateDirectory(place, ME)
    with pytest.raises(ValueError, match="symbolic link"):
        directory.write("a.json", b"{}")
    with pytest.raises(ValueError, match="symbolic link"):
        directory.read("a.json", 100)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_no_report_goes_through_a_link(place, tmp_path):
    """The log says why none is kept, and the daemon works without."""
    (tmp_path / "elsewhere").mkdir()
    place.parent.mkdir()
    place.symlink_to(tmp_path / "elsewhere")
    with capture_logs() as lines:
        ReportStore(place, max_bytes=1 << 20, max_age_s=60)
    assert [line["event"] for line in lines] == ["state.not-kept"]
    assert "symbolic link" in lines[0]["reason"]
    assert list((tmp_path / "elsewhere").iterdir()) == []
