"""The next daemon reads exactly what the last one wrote."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from bpfleakd.model.code.mapping import Mapping
from bpfleakd.tracing.checkpoint import read_checkpoint, write_checkpoint

from .doubles import FakeRecord


@dataclass(frozen=True)
class Kept:
    mappings: tuple[Mapping, ...]
    by_number: dict[int, str]
    raw: bytes
    nothing: int | None


def a_value(path: str) -> Kept:
    mapping = Mapping(1, 2, 3, "fe:00", 23, path, True, False, True)
    return Kept((mapping, mapping), {7: "seven", -1: path}, b"\x00\xff{", None)


@pytest.mark.parametrize("path", ["/usr/bin/leaky", "/usr/bin/naïve", '/tmp/\udc9b\x1b\n"}', "\udcff" * 300])
def test_any_path_is_kept(path):
    """Also one that is not UTF-8: programs choose the names of their files."""
    record = FakeRecord()
    write_checkpoint(record, a_value(path))
    assert read_checkpoint(record, Kept) == a_value(path)


@pytest.mark.parametrize("text", [None, b"", b"{", b"{}", b'{"mappings": 1}', b"\x80", b"\xc1", b"\xff" * 9])
def test_what_cannot_be_read_is_an_error(text):
    """One type of error, whatever is wrong with it."""
    with pytest.raises(ValueError, match="record"):
        read_checkpoint(FakeRecord(text), Kept)
