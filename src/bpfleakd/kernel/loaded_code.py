"""The code that processes map while they are recorded, as the programs note it (bpf/code.h).

Addresses may be one file's code now and another's later. The first code that a range has is not numbered; the
words of stacks in later code have its number (model/code/stack_word.py).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from bpfleakd.kernel import abi, bpf
from bpfleakd.model.code.mapping import LoadedCode, Mapping
from bpfleakd.model.code.stack_word import hash_word

_MINOR_BITS = 20
_WORD_MASK = (1 << 64) - 1


class LoadedCodeTable:
    """`loaded_fd` and `ranges_fd` are of the maps `loaded_code` and `code_ranges`, and stay the caller's."""

    def __init__(self, loaded_fd: int, ranges_fd: int) -> None:
        self._loaded_fd = loaded_fd
        self._ranges_fd = ranges_fd

    def begin(self, pid: int, mappings: Iterable[Mapping]) -> None:
        """Note the code of a process from now on; `mappings` are those it has. Raises OSError."""
        ranges = np.zeros(1, abi.CODE_RANGES)
        code = [one for one in mappings if one.executable and one.inode][: abi.KNOWN_CODE_RANGES]
        for place, mapping in enumerate(code):
            known = (mapping.start, mapping.end, _identity(mapping), 0, 0)
            ranges["known"][0, place] = known
        ranges["next_known"] = len(code)
        bpf.map_update(self._ranges_fd, bpf.u32(pid), ranges.tobytes())

    def end(self, pid: int) -> None:
        """Note no more code of a process: `code_ranges` has room for as many processes as are traced."""
        bpf.map_delete(self._ranges_fd, bpf.u32(pid))

    def of(self, pid: int, root_path: str) -> list[LoadedCode]:
        """The code that a process has mapped since `begin`.

        `root_path` is its root directory, as /proc names it: the programs note paths below it.
        """
        above = root_path.rstrip("/")
        found: list[LoadedCode] = []
        for keys, entries in bpf.map_batches(self._loaded_fd, abi.CODE_KEY, abi.LOADED_CODE, 256):
            chosen = (keys["tgid"] == pid) & (entries["is_counted"] != 0)
            found += [_loaded(*one, above) for one in zip(keys[chosen], entries[chosen], strict=True)]
        return found


def _loaded(key: np.void, entry: np.void, above: str) -> LoadedCode:
    texts = entry["names"]["text"][: min(int(entry["name_count"]), abi.CODE_NAMES)]
    names = [text.tobytes().partition(b"\0")[0] for text in texts]
    path = above + "/" + b"/".join(reversed(names)).decode(errors="surrogateescape") if names else ""
    device = int(key["device"])
    mapping = Mapping(
        int(key["start"]),
        int(key["end"]),
        int(key["offset"]),
        f"{device >> _MINOR_BITS:02x}:{device & (1 << _MINOR_BITS) - 1:02x}",
        int(key["inode"]),
        path,
        readable=True,
        writable=False,
        executable=True,
    )
    return LoadedCode(int(entry["number"]), mapping, was_unnumbered=bool(entry["was_unnumbered"]))


def _identity(mapping: Mapping) -> int:
    """struct code_range.identity: the file, and where it would begin."""
    major, minor = (int(part, 16) for part in mapping.device.split(":"))
    file = hash_word(major << _MINOR_BITS | minor, mapping.inode)
    return hash_word(file, mapping.start - mapping.offset & _WORD_MASK)
