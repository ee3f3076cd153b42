"""Which file systems belong to this machine's root."""

from __future__ import annotations

import os
from pathlib import Path

from bpfleakd.process.files.local_devices import LocalDevices

LINE = "36 35 {device} /mnt1 /mnt2 rw,noatime master:1 - {kind} /dev/root rw,errors=continue\n"


def mounts(path: Path, *lines: tuple[str, str]) -> str:
    """A list of mounts, of devices and types."""
    path.write_text("".join(LINE.format(device=device, kind=kind) for device, kind in lines))
    return str(path)


def test_those_of_our_namespace_and_of_the_machines_init(tmp_path: Path) -> None:
    """A daemon in a container sees the overlays of other containers in the second one only."""
    ours = mounts(tmp_path / "ours", ("8:1", "ext4"), ("0:51", "fuse.sshfs"))
    inits = mounts(tmp_path / "inits", ("0:77", "overlay"), ("0:78", "nfs4"))
    devices = LocalDevices((ours, inits))
    found = [number for number in (1, 51, 77, 78) if os.makedev(8 if number == 1 else 0, number) in devices]
    assert found == [1, 77]


def test_a_list_that_cannot_be_read(tmp_path: Path) -> None:
    """The other list still counts."""
    devices = LocalDevices((str(tmp_path / "none"), mounts(tmp_path / "ours", ("8:1", "ext4"))))
    assert os.makedev(8, 1) in devices
    assert os.makedev(8, 2) not in devices


def test_lines_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "odd").write_text("\n - ext4\n36 35 x:y / / - ext4\n36 35 8:1 / / rw ext4\n")
    assert os.makedev(8, 1) not in LocalDevices((str(tmp_path / "odd"),))


def test_the_file_system_of_this_program() -> None:
    """Wherever the tests run, /dev/shm is the kernel's."""
    assert os.stat("/dev/shm").st_dev in LocalDevices()
