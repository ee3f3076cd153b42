"""Fixtures: a booted machine with the package installed, for the whole session, and its service."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..kernel.machine import bpftool_path, cannot_run, need_tool, why_not_here
from ..kernel.workloads import BUILD
from .container import CommandFailed, Container
from .package import build_package, download_dependencies
from .service import CONFIG, Service

# Beside the package, so that a second run downloads nothing.
_DEPENDENCIES = BUILD.parent / "dependencies"


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Debian package of this checkout."""
    need_tool("dpkg-deb")
    return build_package(tmp_path_factory.mktemp("package"))


@pytest.fixture(scope="session")
def machine(tmp_path_factory: pytest.TempPathFactory, package: Path) -> Iterator[Container]:
    """A machine with systemd and nothing of ours but the package in /root, its dependencies installed."""
    reason = why_not_here()
    if reason is not None:
        cannot_run(reason)
    need_tool("systemd-nspawn")
    bpftool_path()
    download_dependencies(package, _DEPENDENCIES)
    container = Container(tmp_path_factory.mktemp("machine"))
    try:
        container.boot()
        # The container has its own /tmp, and the checkout may be in this machine's.
        container.give(package, "/root/bpfleakd.deb")
        packages = [
            container.give(file, f"/root/{file.name}") for file in sorted(_DEPENDENCIES.glob("*.deb"))
        ]
        if packages:
            # Compiling numpy takes longer than all of the rest.
            container.run("mount", "--bind", "/bin/true", "/usr/bin/py3compile")
            install(container, *packages)
            container.run("umount", "/usr/bin/py3compile")
        yield container
    finally:
        container.stop()


def install(machine: Container, *packages: str | Path) -> str:
    """Install packages by their files, as fast as can be: the machine does not outlive the tests."""
    return machine.run("dpkg", "--force-unsafe-io", "--no-triggers", "--install", *packages)


@pytest.fixture
def service(machine: Container) -> Iterator[Service]:
    """The installed service, just started; its configuration and programs are removed afterwards."""
    if not machine.path("/usr/bin/bpfleakd").exists():
        install(machine, "/root/bpfleakd.deb")
    service = Service(machine)
    packaged = machine.path(CONFIG).read_text()
    service.start_with()
    yield service
    with contextlib.suppress(CommandFailed):
        service.stop_programs()
    machine.write(CONFIG, packaged)


@pytest.fixture(scope="session")
def leaker(machine: Container, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path, in the container, of a program that leaks in `leak_here`, which only its user may read."""
    need_tool("gcc")
    program = machine.path("/home/leaker/leaker")
    machine.run("install", "-d", "-o", "nobody", "-m", "700", "/home/leaker")
    subprocess.run(
        ["gcc", "-O1", "-g", "-o", program, Path(__file__).with_name("leaker.c")], check=True, timeout=60
    )
    machine.run("chown", "nobody", "/home/leaker/leaker")
    machine.run("chmod", "700", "/home/leaker/leaker")
    return "/home/leaker/leaker"
