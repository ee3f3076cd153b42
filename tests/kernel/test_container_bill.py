"""The bill of a real control group with a limit."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from .memory_cgroup import memory_cgroup

MIB = 1 << 20


def container_of(tracer: Any, pid: int) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    container = json.loads(tracer.control("maps", "--pid", pid, "--json"))["container"]
    return {line["kind"]: line for line in container["lines"]}, container


@pytest.mark.long
def test_a_container_grows_by_page_cache_or_by_a_process(tracer, workload):
    """The lines add up to what the kernel charges; a sentence states what grew."""
    allocator = workload("growing", "leak")
    # On a disk: the checkout may be in a tmpfs.
    cached = Path("/var/tmp") / f"bpfleakd-page-cache-{os.getpid()}"
    with memory_cgroup(512 * MIB) as group:
        group.add(allocator.pid)
        tracer.attach(allocator.pid)
        try:
            # Another process of the container writes a file.
            script = 'echo $$ > "$1"/cgroup.procs && head -c 100M /dev/zero > "$2"'
            subprocess.run(["sh", "-c", script, "sh", group.directory, cached], check=True)
            lines, container = container_of(tracer, allocator.pid)
            assert container["cgroup"] == group.name
            assert (container["version"], container["limit_bytes"]) == (group.version, 512 * MIB)
            used_bytes = group.used_bytes
            assert sum(line["bytes"] for line in lines.values()) == pytest.approx(used_bytes, rel=0.01)
            assert lines["file"]["bytes"] == pytest.approx(100 * MIB, rel=0.05)
            # Excluded: what each CPU reserves in advance, and the delay of the statistics.
            assert lines.get("other", {"bytes": 0})["bytes"] <= 2 * MIB
            assert "is page cache" in container["growth_summary"]
        finally:
            cached.unlink(missing_ok=True)

        # Deleted, the page cache is gone, and the process grows alone.
        allocator.step(1_009)
        lines, container = container_of(tracer, allocator.pid)
        grown_bytes = 1_009 * (101 << 10)
        assert lines["anon"]["bytes"] == pytest.approx(grown_bytes, rel=0.05)
        assert lines["anon"]["process_bytes"] == pytest.approx(grown_bytes, rel=0.05)
        assert "is anonymous memory of its processes (100% of that in this process)" in str(
            container["growth_summary"]
        )
        assert "container: " in tracer.control("maps", allocator.pid)
        tracer.detach(allocator.pid)
        allocator.exit()
