"""The use of mappings: by name, by owner, by heuristics."""

from __future__ import annotations

import pytest

from bpfleakd.analysis.memory_use import executable_memory_files, looks_of, named_use, owned_use
from bpfleakd.model.address_space import MemoryUse
from bpfleakd.model.site import AllocationKind, SiteKey
from bpfleakd.table.regions import Special

from .usages import ARENA, PAGE, a_usage

MMAP = SiteKey(AllocationKind.MMAP, 1)
COMMIT = SiteKey(AllocationKind.COMMIT, 2)
STACK = SiteKey(AllocationKind.THREAD_STACK, 3)


@pytest.mark.parametrize(
    ("path", "use"),
    [
        ("[heap]", MemoryUse.HEAP),
        ("[stack]", MemoryUse.THREAD_STACKS),
        ("[stack:23]", MemoryUse.THREAD_STACKS),
        ("[vdso]", MemoryUse.VDSO),
        ("[vvar_vclock]", MemoryUse.VDSO),
        ("[uprobes]", MemoryUse.VDSO),
        ("/usr/lib/libc.so.6", MemoryUse.FILES),
        ("/dev/dri/card0", MemoryUse.FILES),
        ("anon_inode:[io_uring]", MemoryUse.FILES),
        ("/memfd:buffer", MemoryUse.SHARED),
        ("/dev/shm/postgres", MemoryUse.SHARED),
        ("/SYSV00000000", MemoryUse.SHARED),
        ("/dev/zero", MemoryUse.SHARED),
        ("[anon_shmem:x]", MemoryUse.SHARED),
        ("/memfd:doublemapper", MemoryUse.JIT),
        ("[anon: glibc: malloc arena]", MemoryUse.HEAP),
        ("[anon: glibc: pthread stack: 23]", MemoryUse.THREAD_STACKS),
        ("[anon:dalvik-main space]", None),
        ("", None),
    ],
)
def test_names_tell_the_use(path, use):
    """For everything but anonymous memory."""
    assert named_use(a_usage(path=path), frozenset()) is use


def test_shared_files_in_memory_are_shared_memory():
    """By the device; private ones are a program or its library, or a file."""
    devices = frozenset(["00:01"])
    assert named_use(a_usage(path="/run/cache", shared=True), frozenset(), devices) is MemoryUse.SHARED
    assert named_use(a_usage(path="/run/cache", shared=True), frozenset()) is MemoryUse.FILES
    assert named_use(a_usage(path="/tmp/program"), frozenset(), devices) is MemoryUse.FILES


def test_huge_pages_are_anonymous_whatever_they_are_called():
    """Their path is not that of a file."""
    assert named_use(a_usage(path="/anon_hugepage"), frozenset()) is None
    assert named_use(a_usage(path="/anon_hugepage", shared=True), frozenset()) is MemoryUse.SHARED


def test_what_grows_down_is_a_stack():
    """Whatever it is called."""
    assert named_use(a_usage(flags={"gd"}), frozenset()) is MemoryUse.THREAD_STACKS


def test_a_memory_file_that_is_executable_anywhere_is_jit_everywhere():
    """Code is written through one mapping of it and run in another."""
    written, run, other = (
        a_usage(path="/memfd:x", inode=23),
        a_usage(path="/memfd:x", inode=23, rights="r-x"),
        a_usage(path="/memfd:y", inode=101),
    )
    executable = executable_memory_files([written, run, other, a_usage(path="/bin/x", rights="r-x", inode=7)])
    uses = [named_use(usage, executable) for usage in (written, run, other)]
    assert uses == [MemoryUse.JIT, MemoryUse.JIT, MemoryUse.SHARED]


@pytest.mark.parametrize(
    ("owner", "rights", "looks_like", "use"),
    [
        (None, "rw-", None, MemoryUse.MMAP),
        (None, "---", None, MemoryUse.RESERVED),
        (None, "rwx", None, MemoryUse.JIT),
        (Special.BASELINE, "rw-", MemoryUse.HEAP, MemoryUse.HEAP),
        (Special.RESERVED, "---", MemoryUse.HEAP, MemoryUse.HEAP),
        (Special.ALLOCATOR, "---", None, MemoryUse.HEAP),
        (Special.ALLOCATOR, "rw-", MemoryUse.FILES, MemoryUse.HEAP),
        (Special.DISCARDED, "rw-", None, MemoryUse.COMMIT),
        (MMAP, "rw-", MemoryUse.HEAP, MemoryUse.MMAP),
        (MMAP, "r-x", None, MemoryUse.JIT),
        (COMMIT, "rw-", None, MemoryUse.COMMIT),
        (COMMIT, "rwx", None, MemoryUse.JIT),
        (STACK, "rw-", None, MemoryUse.THREAD_STACKS),
        (STACK, "---", None, MemoryUse.THREAD_STACKS),
    ],
)
def test_anonymous_memory_is_its_owners(owner, rights, looks_like, use):
    """Heuristics count only if the mapping was not recorded."""
    assert owned_use(owner, a_usage(rights=rights), looks_like) is use


class TestLooks:
    """Memory from before the attach."""

    def test_a_stack_is_above_a_guard_and_has_a_stack_pointer(self):
        """In its first 8 MiB: the kernel may have joined more memory to it."""
        guard = a_usage(ARENA, 1, "---")
        stack = a_usage(ARENA + PAGE, 10_000)
        inside, beyond = ARENA + 100 * PAGE, ARENA + 5_000 * PAGE
        stack_end = ARENA + PAGE + (8 << 20)
        assert looks_of(stack, guard, [7, inside]) == (stack_end, MemoryUse.THREAD_STACKS)
        assert looks_of(stack, guard, [beyond]) is None
        assert looks_of(stack, a_usage(ARENA, 1), [inside]) is None
        assert looks_of(stack, a_usage(ARENA - PAGE, 1, "---"), [inside]) is None

    def test_variables_are_behind_a_writable_file_mapping(self):
        """Of a library: zeroed memory without a file."""
        data = a_usage(ARENA, 1, path="/usr/lib/libc.so.6")
        bss = a_usage(ARENA + PAGE, 3)
        assert looks_of(bss, data, ()) == (ARENA + 4 * PAGE, MemoryUse.FILES)
        for other in (
            a_usage(ARENA, 1, "r--", path="/usr/lib/libc.so.6"),
            a_usage(ARENA, 1, path="/srv/database", shared=True),
            a_usage(ARENA - PAGE, 1, path="/usr/lib/libc.so.6"),
        ):
            assert looks_of(bss, other, ()) is None
