"""Source lines: gcc's own line numbers, known by construction."""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog

from bpfleakd.elf.image import ElfImage
from bpfleakd.symbols.source_lines import SourceFrame, SourceLines

from ..elf.building import compiled, nm, output_of
from ..waiting import ends

SOURCE = """#include <stdlib.h>
static inline __attribute__((always_inline)) void *inner(int n) {
    return malloc(n); }
static inline __attribute__((always_inline)) void *middle(int n) {
    n += rand();
    return inner(n * 23); }
void *outer(int n) {
    void *p = middle(n);
    return p ? p : NULL; }
int main(int n, char **v) { return outer(n) == 0; }
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("lines"), SOURCE, "-g", "-O1", "-fno-builtin-malloc")


def call_of_malloc(program: Path) -> int:
    """The address of the call of malloc, which was inlined into `outer`."""
    rows = output_of("objdump", "-d", "--no-show-raw-insn", program).splitlines()
    calls = [row for row in rows if "<malloc@plt>" in row and "call" in row]
    return int(calls[0].partition(":")[0], 16)


def script(directory: Path, text: str) -> str:
    path = directory / "lines"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


class TestResolve:
    """What addr2line says of good files."""

    def test_inlined_functions_come_first(self, program: Path) -> None:
        """The line where malloc is called, in the innermost function, then who holds it, outwards."""
        address = call_of_malloc(program)
        source = f"{program}.c"
        found = SourceLines().resolve(str(program), [address])
        assert found == {
            address: (
                SourceFrame("inner", f"{source}:3"),
                SourceFrame("middle", f"{source}:6"),
                SourceFrame("outer", f"{source}:8"),
            )
        }

    def test_several_addresses(self, program: Path) -> None:
        """Every address has its own frames; one outside has none."""
        main = nm(program)["main"]
        found = SourceLines().resolve(str(program), [main, 1 << 40, call_of_malloc(program)])
        assert found[main] == (SourceFrame("main", f"{program}.c:10"),)
        assert found[1 << 40] == ()
        assert len(found[call_of_malloc(program)]) == 3

    def test_more_than_a_batch(self, program: Path) -> None:
        """Thousands of addresses take several children, and all are answered."""
        with ElfImage.open(program) as image:
            text = image.section(".text")
            assert text is not None
            start = text.vaddr
        vaddrs = range(start, start + 1_200)
        assert SourceLines().resolve(str(program), vaddrs).keys() == set(vaddrs)

    def test_program_without_lines(self, tmp_path: Path) -> None:
        """A program without DWARF has functions and no lines."""
        path = compiled(tmp_path, SOURCE)
        assert SourceLines().resolve(str(path), [nm(path)["main"]]) == {
            nm(path)["main"]: (SourceFrame("main", None),)
        }

    def test_separate_debug_file(self, program: Path, tmp_path: Path) -> None:
        """The file with nothing but debug sections is as good as the whole one."""
        debug = tmp_path / "program.debug"
        output_of("objcopy", "--only-keep-debug", program, debug)
        address = call_of_malloc(program)
        lines = SourceLines()
        assert lines.resolve(str(debug), [address]) == lines.resolve(str(program), [address])


class TestMemory:
    """What is known is not asked again."""

    def test_second_question_needs_no_child(self, program: Path, tmp_path: Path) -> None:
        """An answer is remembered by build-id, also for another path, and by inode without one."""
        main = nm(program)["main"]
        log = tmp_path / "log"
        lines = SourceLines(script(tmp_path, f'echo run >> {log}; exec addr2line "$@"'))
        for path in (str(program), "/proc/self/gone"):
            assert lines.resolve(path, [main], "build-id")[main]
        for _ in range(3):
            assert lines.resolve(str(program), [main, 1 << 40])[main]
        assert log.read_text() == "run\n" * 2


class TestFailures:
    """Files and children that misbehave: no lines, and a count."""

    def test_junk_file_is_given_up(self, tmp_path: Path) -> None:
        """What addr2line does not understand has no lines and is not tried again."""
        path = tmp_path / "junk"
        path.write_bytes(b"\x7fELF" + bytes(100))
        lines = SourceLines()
        for vaddr in (1, 2, 1):
            assert lines.resolve(str(path), [vaddr]) == {vaddr: ()}
        assert lines.failures == 1

    def test_slow_child_is_killed(self, tmp_path: Path) -> None:
        """After the timeout the child is gone and the file given up; another file is not affected."""
        slow = script(tmp_path, 'case "$*" in *slow*) exec sleep 600;; esac; exec true')
        lines = SourceLines(slow, timeout_s=0.2)
        found: list[object] = []
        assert ends(lambda: found.extend(lines.resolve("/slow", [vaddr]) for vaddr in range(3)))
        assert found == [{vaddr: ()} for vaddr in range(3)]
        assert lines.failures == 1
        assert lines.resolve("/quick", [1]) == {1: ()}
        assert lines.failures == 1

    def test_endless_output_is_cut(self, tmp_path: Path) -> None:
        """A child that writes without end is stopped by the kernel."""
        lines = SourceLines(script(tmp_path, "exec yes"))
        assert lines.resolve("/endless", [1]) == {1: ()}
        assert lines.failures == 1

    def test_memory_is_limited(self, tmp_path: Path) -> None:
        """The child cannot have more memory than the limit."""
        source = "#include <stdlib.h>\n#include <unistd.h>\n"
        source += "int main(void) { usleep(200000); return malloc(64 << 20) ? 0 : 23; }"
        hungry = compiled(tmp_path, source)
        fed, starved = SourceLines(str(hungry)), SourceLines(str(hungry), memory_limit_bytes=32 << 20)
        fed.resolve("/any", [1])
        starved.resolve("/any", [1])
        assert (fed.failures, starved.failures) == (0, 1)

    def test_missing_program_is_reported_once(self, tmp_path: Path) -> None:
        """Without addr2line there are no lines, and one message says why."""
        with structlog.testing.capture_logs() as logs:
            lines = SourceLines(str(tmp_path / "nowhere"))
            for vaddr in range(3):
                assert lines.resolve("/any", [vaddr]) == {vaddr: ()}
        assert [entry["event"] for entry in logs] == ["source-lines.unavailable"]

    @pytest.mark.parametrize(
        "output", ["0x1", "0x1\\nf", "f\\n/a.c:1", "0x2\\nf\\n/a.c:1", "0xz\\n", "0x1\\n??\\n??:0", ""]
    )
    def test_strange_output(self, tmp_path: Path, output: str) -> None:
        """Answers that are cut, or to questions that nobody asked, are no answers."""
        lines = SourceLines(script(tmp_path, f"printf '{output}'"))
        assert lines.resolve("/any", [1]) == {1: ()}

    def test_names_are_printable(self, tmp_path: Path) -> None:
        """Names come from the file, which may be hostile."""
        lines = SourceLines(script(tmp_path, r"printf '0x1\nf\033[2J\n/a\033b.c:3 (discriminator 2)\n'"))
        assert lines.resolve("/any", [1]) == {1: (SourceFrame(r"f\x1b[2J", r"/a\x1bb.c:3"),)}
