"""The Debian package in the life of a machine: install, upgrade, remove, purge."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ..kernel.waiting import wait_until
from .conftest import install
from .container import CommandFailed, Container
from .package import CHECKOUT, with_version
from .service import BY_HAND, CONFIG, UNIT, Service

PACKAGE = "/root/bpfleakd.deb"
NEXT_VERSION = "99.0"


@pytest.fixture
def without_package(machine: Container) -> Iterator[Service]:
    """The machine as if the package had never been there."""
    machine.run("dpkg", "--no-triggers", "--purge", "bpfleakd")
    yield Service(machine)
    machine.run("dpkg", "--no-triggers", "--purge", "bpfleakd")


def traces(machine: Container) -> set[str]:
    """The package's traces in the file system: names and contents of everything whose name begins with
    bpfleak.
    """
    found = machine.run("find", "/", "-xdev", "-name", "bpfleakd*", "-not", "-path", f"{CHECKOUT}/*")
    ours = ("/etc/", "/usr/", "/var/lib/bpfleakd", "/var/cache/", "/run/bpfleakd", "/lib/")
    return {path for path in found.splitlines() if path.startswith(ours)}


def group_exists(machine: Container) -> bool:
    try:
        return "bpfleakd" in machine.run("getent", "group", "bpfleakd")
    except CommandFailed:
        return False


def test_an_installed_package_is_a_running_service(without_package: Service):
    """Enabled and ready, with its group; the machine says that it can do all."""
    install(without_package.machine, PACKAGE)
    assert without_package.show("ActiveState") == "active"
    assert without_package.systemctl("is-enabled", UNIT).strip() == "enabled"
    assert group_exists(without_package.machine)
    assert "answers on /run/bpfleakd/bpfleakd.sock" in without_package.control("doctor")


def test_an_upgrade_keeps_configuration_and_tables(
    without_package: Service, package: Path, leaker: str
):
    """A new daemon runs then, with the administrator's configuration, and adopts the traced processes."""
    machine = without_package.machine
    install(machine, PACKAGE)
    without_package.start_with(configuration=BY_HAND)
    pid = without_package.pid
    program = without_package.start_program(leaker)
    without_package.control("attach", program)
    before = wait_until(lambda: without_package.top(program)["process"]["live_count"])
    newer = machine.give(with_version(package, NEXT_VERSION), "/root/newer.deb")
    install(machine, "--force-confold", newer)
    assert machine.run("dpkg-query", "--show", "--showformat=${Version}", "bpfleakd") == NEXT_VERSION
    assert without_package.pid not in (0, pid)
    assert without_package.show("ActiveState") == "active"
    assert machine.path(CONFIG).read_text() == BY_HAND
    assert without_package.top(program)["process"]["live_count"] > before
    without_package.stop_programs()


def test_remove_stops_and_keeps_the_configuration_and_purge_keeps_nothing(without_package: Service):
    """No file, directory, group, unit link or pin of ours is left on the machine."""
    machine = without_package.machine
    install(machine, PACKAGE)
    machine.write("/var/lib/bpfleakd/report", "kept for a while")
    machine.run("dpkg", "--no-triggers", "--remove", "bpfleakd")
    assert without_package.show("ActiveState") == "inactive"
    assert sorted(machine.bpffs.iterdir()) == []
    assert not machine.path("/usr/lib/bpfleakd").exists()
    assert machine.path(CONFIG).exists()
    assert machine.path("/var/lib/bpfleakd/report").exists()
    machine.run("dpkg", "--no-triggers", "--purge", "bpfleakd")
    assert traces(machine) == set()
    assert not group_exists(machine)
    assert without_package.show("LoadState") == "not-found"
