"""A daemon's objects in the kernel and in targets: BPF objects by id, pins, rings, breakpoints."""

from __future__ import annotations

import json
import mmap
import os
import re
import struct
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from bpfleakd.kernel import bpf
from bpfleakd.kernel.abi import SPACE_EVENT
from bpfleakd.kernel.pins import pinned_sets

from .machine import bpftool_path

_KINDS = ("map", "prog", "link")
_ID = re.compile(r"^(map|prog|link)_id:\s*(\d+)$", re.MULTILINE)


@dataclass
class KernelObjects:
    """BPF objects by kind ("map", "prog", "link"): id → name (a link's is its kind)."""

    ids: dict[str, dict[int, str]] = field(default_factory=lambda: {kind: {} for kind in _KINDS})

    def add(self, other: KernelObjects) -> None:
        """Take the other's objects in."""
        for kind in _KINDS:
            self.ids[kind].update(other.ids[kind])

    def __str__(self) -> str:
        texts = [f"{kind} {id_} ({name})" for kind in _KINDS for id_, name in self.ids[kind].items()]
        return ", ".join(texts) or "nothing"

    def __bool__(self) -> bool:
        return any(self.ids.values())


def objects_held_by(pid: int) -> KernelObjects:
    """The objects that the process has a file descriptor of."""
    held = KernelObjects()
    names = {kind: {entry["id"]: entry for entry in _bpftool(kind, "show")} for kind in _KINDS}
    for info in Path(f"/proc/{pid}/fdinfo").glob("*"):
        try:
            text = info.read_text()
        except OSError:  # closed meanwhile
            continue
        for kind, id_ in _ID.findall(text):
            # A link's fdinfo names its program too, which is as much its own.
            held.ids[kind][int(id_)] = _name(names[kind].get(int(id_), {}))
    return held


def has_pin(bpffs_dir: Path, *names: str) -> bool:
    """Whether one of these is pinned below a daemon's directory."""
    return any(any(bpffs_dir.rglob(name)) for name in names)


def space_events_so_far(bpffs_dir: Path) -> int:
    """How many changes of address spaces a daemon's programs have reported."""
    (pins,) = pinned_sets(bpffs_dir)
    fd = bpf.object_get(pins.directory / "space_events")
    try:
        # The producer's page is the second one; each record has a header of 8 bytes.
        with mmap.mmap(fd, mmap.PAGESIZE, prot=mmap.PROT_READ, offset=mmap.PAGESIZE) as page:
            (written_bytes,) = struct.unpack_from("=Q", page)
    finally:
        os.close(fd)
    return int(written_bytes // (SPACE_EVENT.itemsize + 8))


def objects_pinned_below(directory: Path) -> KernelObjects:
    """The objects that are pinned somewhere below `directory`."""
    pinned = KernelObjects()
    for kind in _KINDS:
        for entry in _bpftool("-f", kind, "show"):
            paths = entry.get("pinned", [])
            if any(Path(path).is_relative_to(directory) for path in paths):
                pinned.ids[kind][entry["id"]] = _name(entry)
    return pinned


def wait_until_gone(objects: KernelObjects, timeout_s: float = 10.0) -> KernelObjects:
    """Return those of `objects` that still exist after the time. The kernel frees them a little later."""
    deadline = time.monotonic() + timeout_s
    while True:
        left = KernelObjects()
        for kind in _KINDS:
            existing = {entry["id"] for entry in _bpftool(kind, "show")}
            left.ids[kind] = {id_: name for id_, name in objects.ids[kind].items() if id_ in existing}
        if not left:
            return left
        if time.monotonic() > deadline:
            left.ids["map"] = {id_: name for id_, name in left.ids["map"].items() if not _is_husk(id_)}
            return left
        time.sleep(0.1)


def _is_husk(map_id: int) -> bool:
    """Whether a map of programs is empty, and used by no program: Linux 6.18 now and then does not free it.

    No process has it open then, and no pin names it; whatever held it that is ours would be left itself.
    """
    shown = [entry for entry in _bpftool("map", "show") if entry["id"] == map_id]
    if not shown or shown[0].get("type") != "prog_array":
        return not shown
    users = [entry for entry in _bpftool("prog", "show") if map_id in entry.get("map_ids", ())]
    held = any(map_id in objects_held_by(int(path.name)).ids["map"] for path in Path("/proc").glob("[0-9]*"))
    return not users and not held and not _bpftool("map", "dump", "id", str(map_id))


def changed_text(pid: int) -> list[str]:
    """Where the code of a process differs from its file: "path+offset: file byte → memory byte".

    A uprobe is a changed byte (a breakpoint) in a file's mapping; all private mappings of files that
    cannot be written are compared.
    """
    changes = []
    with open(f"/proc/{pid}/mem", "rb") as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            span, rights, offset_text, _device, _inode, *path = line.split(maxsplit=5)
            if "x" not in rights or "w" in rights or not path or not path[0].startswith("/"):
                continue
            start, end = (int(part, 16) for part in span.split("-"))
            with open(f"/proc/{pid}/map_files/{start:x}-{end:x}", "rb") as file:
                file.seek(int(offset_text, 16))
                expected = file.read(end - start)
            memory.seek(start)
            actual = memory.read(len(expected))
            if actual != expected:
                changes += [
                    f"{path[0]}+{int(offset_text, 16) + i:#x}: {expected[i]:#04x} → {actual[i]:#04x}"
                    for i in range(len(expected))
                    if actual[i] != expected[i]
                ]
    return changes


def _name(entry: dict) -> str:
    return entry.get("name") or str(entry.get("type", "?"))


def _bpftool(*arguments: str) -> list[dict]:
    done = subprocess.run(
        [bpftool_path(), "--json", *arguments], capture_output=True, text=True, check=True, timeout=30
    )
    return json.loads(done.stdout or "[]")
