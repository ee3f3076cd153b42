"""Where a JVM has its code heaps, by the structures that it exports."""

from __future__ import annotations

import pytest

from bpfleakd.runtimes.jvm.layout import _code
from bpfleakd.runtimes.jvm.vm_structs import VmStructs

CODE = {
    ("HeapBlock::Header", "_used"): 8,
    ("CodeBlob", "_name"): 96,
    ("CodeBlob", "_size"): 12,
    ("CodeBlob", "_frame_size"): 28,
    ("CodeBlob", "_code_begin"): 32,
    ("CodeBlob", "_code_end"): 40,
    ("CompiledMethod", "_method"): 112,
    ("CodeHeap", "_memory"): 8,
    ("CodeHeap", "_segmap"): 120,
    ("CodeHeap", "_log2_segment_size"): 256,
    ("VirtualSpace", "_low"): 16,
    ("VirtualSpace", "_high"): 24,
}


@pytest.mark.parametrize(("published", "elements"), [({("GrowableArray<int>", "_data"): 24}, 24), ({}, 8)])
def test_where_the_elements_of_an_array_are(published: dict[tuple[str, str], int], elements: int) -> None:
    """In 11 behind an arena; later machines have them at once."""
    structs = VmStructs(
        offsets=CODE | published,
        statics={("CodeCache", "_heaps"): 0x7000},
        sizes={"HeapBlock": 16},
        constants={},
    )
    assert _code(structs).heaps_elements == elements
