"""Programs for OpenJDK, started as users start them."""

from __future__ import annotations

import shutil
from pathlib import Path

from .building import build_directory
from .machine import cannot_run


def java_home() -> Path:
    """The JDK of the machine; without it the test cannot run."""
    compiler = shutil.which("javac")
    if compiler is None:
        cannot_run("javac is not installed: apt install openjdk-17-jdk-headless, or make setup FOR=test")
    return Path(compiler).resolve().parents[1]


def java_agent(library: str) -> str:
    """The option that loads an agent of tests/workloads/runtimes."""
    return f"-agentpath:{build_directory('runtimes', library, JAVA_HOME=java_home()) / library}"


def java_program(name: str, *libraries: str, options: tuple[str, ...] = ()) -> list[str | Path]:
    """The command that runs tests/workloads/runtimes/NAME.java; its first argument is the directory of the
    libraries.
    """
    home = java_home()
    directory = build_directory("runtimes", *libraries, f"{name}.class", JAVA_HOME=home)
    command: list[str | Path] = [home / "bin/java", *options, "-cp", directory, name]
    return [*command, directory] if libraries else command
