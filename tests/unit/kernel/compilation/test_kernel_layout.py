"""Field offsets from BTF, compared with gcc's offsetof."""

from __future__ import annotations

from pathlib import Path

import pytest

from bpfleakd.kernel.compilation.kernel_layout import Btf, layout_flags

from ...elf.building import compiled, objcopy, output_of

SOURCE = """
#include <stddef.h>
#include <stdio.h>
enum kind { FIRST, SECOND };
struct other { int (*call)(int, long); enum kind kind; char text[23]; };
struct node {
    char first;
    unsigned flag : 3;
    unsigned more : 7;
    union { struct other inside; const struct other *pointer; };
    struct { short narrow; struct node *next; };
    volatile long last;
};
struct node node;
int main(void) {
#define SHOW(field) printf(#field " %zu\\n", offsetof(struct node, field));
    SHOW(first) SHOW(inside) SHOW(pointer) SHOW(narrow) SHOW(next) SHOW(last)
    printf("kind %zu\\n", offsetof(struct other, kind));
    return 0;
}
"""


def test_offsets_are_those_of_the_compiler(tmp_path: Path) -> None:
    """Also in structures and unions without a name, and behind bit fields."""
    program = compiled(tmp_path, SOURCE, "-gbtf")
    truth = {name: int(at) for name, at in (row.split() for row in output_of(program).splitlines())}
    section = tmp_path / "btf"
    objcopy(program, f"--dump-section=.BTF={section}")

    found = Btf(section.read_bytes()).offsets({"node", "other"})

    fields = {field: at for (_structure, field), at in found.items()}
    assert {name: fields[name] for name in truth} == truth
    assert ("other", "kind") in found


def test_a_kernel_that_does_not_say() -> None:
    """Then the programs do without."""
    assert layout_flags(Path("/nowhere/vmlinux")) == []
    assert layout_flags(Path(__file__)) == []


@pytest.mark.parametrize("data", [b"", b"\x9f\xeb", bytes(64)])
def test_no_btf(data: bytes) -> None:
    """Anything else is rejected."""
    with pytest.raises(ValueError, match="no BTF"):
        Btf(data)
