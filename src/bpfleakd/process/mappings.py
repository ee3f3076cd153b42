"""The address space of a process: /proc/PID/maps, and how to open mapped files."""

from __future__ import annotations

from pathlib import Path

from bpfleakd import errors
from bpfleakd.model.code.mapping import Mapping
from bpfleakd.process.reading.reads import read_file
from bpfleakd.process.reading.refusals import reading

PROC = Path("/proc")
_DELETED = " (deleted)"
# About 2,000 mappings; longer texts are not cached but read again each time.
_KEPT_CHARS_MAX = 256 << 10


def read_mappings(pid: int, proc: Path = PROC) -> tuple[Mapping, ...]:
    """Read the mappings of a process, by address.

    Raises NoSuchProcess, AccessDenied, or NotYet if the process keeps its readers waiting.
    """
    return parse_mappings(_text(pid, proc))


class KnownMappings:
    """The mappings of a process: each call reads them, and parses them only if they changed.

    Parsing takes eight times as long as reading. Raises the errors of `read_mappings`.
    """

    def __init__(self, pid: int, proc: Path = PROC) -> None:
        self._pid = pid
        self._proc = proc
        self._text = ""
        self._mappings: tuple[Mapping, ...] = ()

    def __call__(self) -> tuple[Mapping, ...]:
        """The current mappings."""
        text = _text(self._pid, self._proc)
        if text == self._text:
            return self._mappings
        mappings = parse_mappings(text)
        if len(text) <= _KEPT_CHARS_MAX:
            self._text, self._mappings = text, mappings
        return mappings


def _text(pid: int, proc: Path) -> str:
    path = proc / str(pid) / "maps"
    with reading(pid, path):
        # Not read_text: a path may have a carriage return, which does not end a line.
        text = read_file(pid, path).decode(errors="surrogateescape")
    if not text:
        raise errors.NoSuchProcess(f"process {pid} no longer has any memory")
    return text


def parse_mappings(text: str) -> tuple[Mapping, ...]:
    """Parse the text of /proc/PID/maps (proc_pid_maps(5)); malformed lines are left out."""
    return tuple(mapping for line in text.split("\n") if (mapping := _parse(line)))


def mapped_by_address(pid: int, mapping: Mapping, proc: Path = PROC) -> str:
    """The link to the very file that is mapped, even if it was deleted or replaced, or is in a container.

    Opening it requires CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN.
    """
    return str(proc / str(pid) / "map_files" / f"{mapping.start:x}-{mapping.end:x}")


def _parse(line: str) -> Mapping | None:
    fields = line.split(maxsplit=5)
    if len(fields) < 5:
        return None
    try:
        start, end = (int(part, 16) for part in fields[0].split("-"))
        offset, inode = int(fields[2], 16), int(fields[4])
    except ValueError:
        return None
    rights = fields[1]
    path = fields[5] if len(fields) == 6 else ""
    deleted = path.endswith(_DELETED)
    return Mapping(
        start=start,
        end=end,
        offset=offset,
        device=fields[3],
        inode=inode,
        path=_unescaped(path.removesuffix(_DELETED)),
        readable="r" in rights,
        writable="w" in rights,
        executable="x" in rights,
        deleted=deleted,
        shared="s" in rights,
    )


def _unescaped(path: str) -> str:
    r"""Unescape a path: the kernel writes a newline as \012, and escapes nothing else."""
    return path.replace("\\012", "\n")
