"""The units, containers and pods of a process, from the kernel's texts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpfleakd.model.process import ProcessLabels
from bpfleakd.process.identity import parse_cgroup, read_labels, user_name

from .proc_files import a_process

ID = "3f1c" * 16
OTHER = "07ab" * 16
UID = "8f8b1bd2-1b9a-4ba1-9f1a-0a6d2b1a2c3d"
STATIC = "0123456789abcdef" * 2

# The path in the unified hierarchy, and the result: unit, container, pod.
_PATHS = [
    ("/", None, None, None),
    ("/init.scope", "init.scope", None, None),
    ("/system.slice/nginx.service", "nginx.service", None, None),
    ("/system.slice/system-getty.slice/getty@tty1.service", "getty@tty1.service", None, None),
    ("/system.slice/shop.service/workers", "shop.service", None, None),
    (
        "/user.slice/user-1000.slice/user@1000.service/app.slice/app-firefox-4711.scope",
        "app-firefox-4711.scope",
        None,
        None,
    ),
    (f"/system.slice/docker-{ID}.scope", f"docker-{ID}.scope", ID, None),
    (f"/docker/{ID}", None, ID, None),
    (f"/docker/{ID}/docker/{OTHER}", None, OTHER, None),
    (f"/machine.slice/libpod-{ID}.scope/container", f"libpod-{ID}.scope", ID, None),
    (f"/machine.slice/libpod-conmon-{ID}.scope", f"libpod-conmon-{ID}.scope", None, None),
    (f"/libpod_parent/libpod-{ID}", None, ID, None),
    (f"/system.slice/nerdctl-{ID}.scope", f"nerdctl-{ID}.scope", ID, None),
    (
        f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID.replace('-', '_')}.slice"
        f"/cri-containerd-{ID}.scope",
        f"cri-containerd-{ID}.scope",
        ID,
        UID,
    ),
    (f"/kubepods/besteffort/pod{UID}/{ID}", None, ID, UID),
    (f"/kubepods/pod{STATIC}/{ID}", None, ID, STATIC),
    (f"/kubepods.slice/kubepods-pod{STATIC}.slice/crio-{ID}.scope", f"crio-{ID}.scope", ID, STATIC),
    (
        f"/kubepods.slice/kubepods-pod{STATIC}.slice/crio-conmon-{ID}.scope",
        f"crio-conmon-{ID}.scope",
        None,
        STATIC,
    ),
    (
        f"/system.slice/containerd.service/kubepods-pod{UID.replace('-', '_')}.slice:cri-containerd:{ID}",
        "containerd.service",
        ID,
        UID,
    ),
    (f"/ecs/task/{ID}", None, ID, None),
    (f"/shop/{ID[:-1]}", None, None, None),
    (f"/shop/pod{UID}", None, None, None),
]


@pytest.mark.parametrize(("path", "unit", "container", "pod"), _PATHS)
def test_the_path_of_a_control_group_tells(path, unit, container, pod):
    """As systemd and the container runtimes name them."""
    labels = parse_cgroup(f"0::{path}\n", "shop")
    assert labels == ProcessLabels("shop", path, unit, container, pod)


def test_the_unified_hierarchy_goes_before_the_old_ones():
    """Then systemd's own; a root says nothing."""
    v1 = "12:pids:/p/a.service\n3:memory:/docker/x\n1:name=systemd:/system.slice/b.service\n"
    assert parse_cgroup(v1 + "0::/system.slice/c.service\n").unit == "c.service"
    assert parse_cgroup(v1 + "0::/\n").unit == "b.service"
    assert parse_cgroup(f"3:memory:/docker/{ID}\n1:name=systemd:/\n0::/\n").container == ID


@pytest.mark.parametrize("text", ["", "\n", "0::", "0", ":::", "garbage"])
def test_nothing_is_made_of_nonsense(text):
    """No control groups at all, for one."""
    assert parse_cgroup(text) == ProcessLabels()


@given(st.text())
def test_whatever_the_text_is_labels_are_printable_and_short(text):
    """Anybody who may create control groups chooses their names."""
    for label in vars_of(parse_cgroup(f"0::/{text}.service\n")):
        assert label.isprintable()
        assert len(label) <= 256


def vars_of(labels: ProcessLabels) -> list[str]:
    values = (labels.user, labels.cgroup, labels.unit, labels.container, labels.pod)
    return [value for value in values if value is not None]


def test_a_process_of_proc(tmp_path):
    """The user is the effective one."""
    pid = a_process(tmp_path)
    (tmp_path / str(pid) / "cgroup").write_text("0::/system.slice/shop.service\n")
    assert read_labels(pid, tmp_path, user_of=lambda uid: f"user{uid}") == ProcessLabels(
        "user1001", "/system.slice/shop.service", "shop.service"
    )


def test_a_process_that_is_gone_belongs_nowhere(tmp_path):
    """It is not an error: its report can still be shown."""
    assert read_labels(23, tmp_path) == ProcessLabels()


def test_users_without_a_name_are_numbers():
    """Those of containers, often."""
    assert user_name(0) == "root"
    assert user_name(3_999_971) == "3999971"
