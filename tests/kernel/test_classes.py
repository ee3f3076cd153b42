"""Classes of C++ objects by call site, against a program that knows what it made."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from .waiting import wait_until
from .workloads import Workload, build

# Expected class and its place, by the number of blocks that a site keeps (tests/workloads/classes.cpp).
CLASSES = {
    53: ("shop::Session", 0),
    59: ("shop::Order", 0),
    61: ("shop::Shared", 0),
    71: ("(anonymous namespace)::Hidden", 0),
    73: ("shop::Session[]", 0),
    79: ("shop::Wide[]", 0),
    83: ("shop::Guest", 0),
    89: ("std::shared_ptr<shop::Session> counts", 0),
    97: None,
    101: None,
    103: ("shop::Guest", 16),
    107: ("shop::Session", 40),
    109: None,
}
QUEUES = 67
MIXED = 1000


@pytest.fixture(params=["symbols", "stripped", "static", "no-rtti"])
def program(request, tmp_path: Path):
    """The program with symbols, without any, linked statically, or without type information."""
    path = build("classes-no-rtti" if request.param == "no-rtti" else "classes")
    if request.param == "stripped":
        path = Path(shutil.copy(path, tmp_path / "classes"))
        subprocess.run(["strip", "--strip-all", path], check=True)
    if request.param == "static":
        path = build("classes-static")
    program = Workload([path])
    yield program
    program.kill()


def test_the_class_of_each_site_is_named(tracer, program):
    """Objects, arrays, shared objects, objects in nodes of containers; and no class without a vtable."""
    tracer.attach_with_tables(program.pid)
    program.step()

    sites = {site["live_count"]: site["types"] for site in tracer.top_after_tick(program.pid)["sites"]}

    found = {count: [(one["type"], one["offset_bytes"]) for one in sites[count]] for count in CLASSES}
    assert found == {count: [expected] if expected else [] for count, expected in CLASSES.items()}
    assert all(one["share"] == 1.0 for count in CLASSES for one in sites[count])
    (queue,) = sites[QUEUES]
    assert queue["type"].startswith("shop::Queue<std::pair<int, std::__cxx11::basic_string<char")
    shares = {one["type"]: one["share"] for one in sites[MIXED]}
    assert shares["shop::Guest"] >= 0.88
    assert shares.keys() <= {"shop::Guest", "shop::Session"}


def test_the_classes_are_shown(tracer, workload):
    """In the text of `top`, in the report of the blocks, and in the stored report of a process that ended."""
    program = workload("classes")
    tracer.attach_with_tables(program.pid)
    program.step()
    tracer.top_after_tick(program.pid)

    assert "objects: shop::Order 100%" in tracer.control("top", program.pid, "--once", "--stacks", "20")
    assert "objects: shop::Guest 100% at +16" in tracer.control("report", "--pid", program.pid)
    program.exit()
    wait_until(lambda: tracer.process(program.pid)["process"]["state"] == "exited")
    sites = {site["live_count"]: site["types"] for site in tracer.top(program.pid)["sites"]}
    assert sites[59][0]["type"] == "shop::Order"
