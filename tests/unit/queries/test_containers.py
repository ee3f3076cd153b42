"""The control groups of traced processes, for the metrics."""

from __future__ import annotations

from pathlib import Path

from bpfleakd.queries.containers import ContainerFigures

_PAUSE_NS = 10_000_000_000


def a_group(tmp_path: Path, pids: tuple[int, ...], name: str, used: int) -> Path:
    directory = tmp_path / "cgroup" / name
    directory.mkdir(parents=True)
    for file, text in (("memory.max", 1_000_000), ("memory.current", used), ("memory.stat", f"anon {used}")):
        (directory / file).write_text(f"{text}\n")
    for pid in pids:
        (tmp_path / "proc" / str(pid)).mkdir(parents=True)
        (tmp_path / "proc" / str(pid) / "cgroup").write_text(f"0::/{name}\n")
    return directory


def test_each_group_once_and_not_at_each_tick(tmp_path: Path) -> None:
    """That with the least room first; a process that is new is not waited for."""
    shop = a_group(tmp_path, (7, 11), "shop", 700_000)
    a_group(tmp_path, (13,), "pay", 900_000)
    figures = ContainerFigures(tmp_path / "proc", tmp_path / "cgroup")

    def used(*pids: int, at_ns: int) -> list[tuple[str, int]]:
        return [(group.cgroup, group.used_bytes) for group in figures.of(pids, at_ns)]

    assert used(7, 11, at_ns=1) == [("/shop", 700_000)]
    (shop / "memory.current").write_text("800000\n")
    assert used(7, 11, at_ns=_PAUSE_NS) == [("/shop", 700_000)]
    assert used(7, 11, 13, at_ns=_PAUSE_NS) == [("/pay", 900_000), ("/shop", 800_000)]
    assert used(at_ns=_PAUSE_NS) == []
    (shop / "memory.current").write_text("850000\n")
    assert used(7, at_ns=_PAUSE_NS + 1) == [("/shop", 850_000)]
