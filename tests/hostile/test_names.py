"""Names and files that are made to keep the daemon busy: only their own process waits."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ..kernel.machine import need_tool
from ..kernel.waiting import wait_until
from ..kernel.workloads import SOURCES, Workload


def slow_names(count: int) -> list[str]:
    """Mangled names of some hundred characters that stand for more text than there are atoms."""
    names = []
    for number in range(count):
        text = f"_Z{len(str(number)) + 1}f{number}St4pairIiiE"
        # Each substitution is a pair of the one before with itself.
        text += "".join(f"S_IS{_digit(level)}_S{_digit(level)}_E" for level in range(60))
        names.append(text)
    return names


def _digit(number: int) -> str:
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    return digits[number] if number < 36 else digits[number // 36] + digits[number % 36]


def build(directory: Path, *options: str, source: str = "many_sites.c") -> Path:
    need_tool("gcc")
    program = directory / "hostile"
    command = ["gcc", "-O1", "-g", "-pthread", f"-I{SOURCES}", "-o", program, SOURCES / source, *options]
    subprocess.run(command, check=True)
    return program


@pytest.fixture
def hostile_program():
    running: list[Workload] = []

    def start(program: Path, *arguments: object) -> Workload:
        running.append(Workload([program, *map(str, arguments)]))
        return running[-1]

    yield start
    for one in running:
        one.kill()


def test_a_debug_link_that_leads_to_a_pipe(bystander, public_directory, hostile_program) -> None:
    """Opening the pipe for reading would block forever; the daemon does not open it."""
    pipe = public_directory / "pipe"
    os.mkfifo(pipe)
    program = build(public_directory)
    section = public_directory / "section"
    section.write_bytes(os.fsencode(pipe) + b"\0" + bytes(20))
    subprocess.run(["objcopy", f"--add-section=.gnu_debugaltlink={section}", program], check=True)
    hostile = hostile_program(program, 64, 23, 101)
    with bystander.during_attack():
        bystander.tracer.attach(hostile.pid)
        hostile.step(1_000)
        report = bystander.tracer.top_after_tick(hostile.pid)
    assert {site["function"] for site in report["sites"]} == {"allocate_at_leaf"}
    bystander.tracer.detach(hostile.pid)


def test_names_that_take_the_demangler_for_ever(bystander, public_directory, hostile_program) -> None:
    """They stay as they are; the bystander's are readable, and the daemon answers."""
    program = build(public_directory)
    rename = f"--redefine-sym=allocate_at_leaf={slow_names(1)[0]}"
    for number, function in enumerate(("left", "right")):
        rename_too = f"--redefine-sym={function}={slow_names(3)[number + 1]}"
        subprocess.run(["objcopy", rename_too, program], check=True)
    subprocess.run(["objcopy", "--strip-debug", rename, program], check=True)
    hostile = hostile_program(program, 64, 23, 101)
    with bystander.during_attack():
        bystander.tracer.attach(hostile.pid)
        hostile.step(1_000)
        bystander.tracer.top_after_tick(hostile.pid)
        report = bystander.tracer.top_after_tick(bystander.program.pid)
    assert {site["function"] for site in report["sites"]} == {"allocate_at_leaf"}
    wait_until(lambda: bystander.tracer.top(hostile.pid)["sites"][0]["function"])
    bystander.tracer.detach(hostile.pid)
