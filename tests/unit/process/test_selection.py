"""Which processes of a /proc a user means."""

from __future__ import annotations

from pathlib import Path

import pytest

from bpfleakd.model.process import ProcessSelection
from bpfleakd.process.policy.selection import selected_pids

from .proc_files import a_process

OWN, ASKING = 900, 901
CONTAINER = "5d41402abc4b2a76b9719d911017c5925d41402abc4b2a76b9719d911017c592"
_PF_KTHREAD = 0x0020_0000


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """Two shops, one of them in a container, their tool, a kernel thread, the daemon and the requesting
    process.
    """
    groups = {
        a_process(tmp_path, 23, comm=b"shop"): "/system.slice/shop.service",
        a_process(tmp_path, 29, comm=b"shop", start_ticks=9_000): f"/system.slice/docker-{CONTAINER}.scope",
        # As long as names get in the kernel.
        a_process(tmp_path, 31, comm=b"shop-order-serv", exe="/srv/shop-order-service"): "/user.slice",
        a_process(tmp_path, 37, comm=b"shop", flags=_PF_KTHREAD, exe=None): "/",
        a_process(tmp_path, OWN, comm=b"shop"): "/system.slice/bpfleakd.service",
        a_process(tmp_path, ASKING, comm=b"shop"): "/user.slice",
        a_process(tmp_path, 41, comm=b"shop", state="Z"): "/system.slice/shop.service",
    }
    for pid, group in groups.items():
        (tmp_path / str(pid) / "cgroup").write_text(f"0::{group}\n")
    return tmp_path


@pytest.mark.parametrize(
    ("selection", "pids"),
    [
        (ProcessSelection(name="shop"), (23, 29)),
        (ProcessSelection(name="shop*"), (23, 31, 29)),
        (ProcessSelection(name="shop-order-service"), (31,)),
        (ProcessSelection(name="sho"), ()),
        (ProcessSelection(unit="shop"), (23,)),
        (ProcessSelection(unit="shop.service"), (23,)),
        (ProcessSelection(unit="s*"), (23,)),
        (ProcessSelection(container=CONTAINER[:12]), (29,)),
        (ProcessSelection(container=CONTAINER), (29,)),
        (ProcessSelection(name="shop", container=CONTAINER), (29,)),
        (ProcessSelection(name="other", unit="shop"), ()),
    ],
)
def test_all_that_match_are_meant(proc: Path, selection: ProcessSelection, pids: tuple[int, ...]) -> None:
    """By name, of the executable too; by unit and container; by all that is given together."""
    assert selected_pids(selection, own_pid=OWN, asking_pid=ASKING, proc=proc) == pids


def test_helpers_of_the_daemon_are_not_meant(tmp_path: Path) -> None:
    """Its children and theirs: the parent of all in this /proc is 1."""
    a_process(tmp_path, 1, comm=b"shop")
    a_process(tmp_path, 23, comm=b"shop", start_ticks=9_000)
    assert selected_pids(ProcessSelection("shop"), own_pid=1, asking_pid=0, proc=tmp_path) == ()


def test_a_process_without_files_is_passed_over(tmp_path: Path) -> None:
    """It has ended between two reads."""
    a_process(tmp_path, 23, comm=b"shop")
    assert selected_pids(ProcessSelection(unit="*"), own_pid=1, asking_pid=0, proc=tmp_path) == ()


def test_the_words_of_a_selection() -> None:
    """For the message that nothing matches."""
    assert ProcessSelection("shop", None, "5d41").words == "name 'shop', container '5d41'"
