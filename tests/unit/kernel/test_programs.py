"""The programs by name and kind, against the C source that defines them."""

from __future__ import annotations

import re

import pytest

from bpfleakd import errors
from bpfleakd.kernel.bpf import AttachType, ProgramType
from bpfleakd.kernel.compilation.source import bpf_directory
from bpfleakd.kernel.programs import (
    DESCRIPTOR_CALLS,
    LIFE_PROGRAMS,
    SPACE_CALLS,
    AttachMethod,
    Covered,
    SyscallMethod,
    WalkerKind,
    check_release,
    continuations_of,
    programs_of,
    shared_programs_of,
    since,
    syscall_programs,
    unexpected_fallbacks,
)

SYSCALL_PROGRAMS = [program for method in SyscallMethod for program in syscall_programs(method)]


def defined_functions() -> set[str]:
    source = (bpf_directory() / "bpfleakd.bpf.c").read_text()
    return set(re.findall(r"^int (\w+)\(", source, re.MULTILINE))


@pytest.mark.parametrize("method", AttachMethod)
def test_every_program_is_defined(method: AttachMethod) -> None:
    """No method needs a function that the source lacks."""
    programs = {*programs_of(method), *continuations_of(method).values(), *LIFE_PROGRAMS, *SYSCALL_PROGRAMS}
    assert {program.function for program in programs} <= defined_functions()


def test_every_function_is_used() -> None:
    """Some method loads every function that the source defines."""
    used = {*LIFE_PROGRAMS, *SYSCALL_PROGRAMS}
    for method in AttachMethod:
        used.update(programs_of(method), continuations_of(method).values())
        used.update(shared_programs_of(method, WalkerKind.MAY_GOTO))
    assert {program.function for program in used} == defined_functions()


@pytest.mark.parametrize("method", AttachMethod)
def test_a_method_sees_both_ends_of_a_call(method: AttachMethod) -> None:
    """All functions have a program at the entry; the return has a separate program, except with sessions."""
    of_functions = [program for program in programs_of(method) if program.covered is not Covered.SAMPLED]
    at_entry = {program.covered for program in of_functions if not program.at_return}
    at_return = {program.covered for program in of_functions if program.at_return}
    if method is AttachMethod.SESSION:
        assert (at_entry, at_return) == ({Covered.RETURNING, Covered.OTHERS}, set())
    else:
        assert (at_entry, at_return) == ({Covered.ALL}, {Covered.RETURNING})


@pytest.mark.parametrize("method", AttachMethod)
def test_static_probes_get_no_return_probe(method: AttachMethod) -> None:
    """At these places the word at the stack pointer is not a return address: one program, and no session."""
    (program,) = (program for program in programs_of(method) if program.covered is Covered.SAMPLED)
    assert not program.at_return
    assert program.attach_type is not AttachType.UPROBE_SESSION


@pytest.mark.parametrize("method", AttachMethod)
def test_a_walk_goes_on_in_a_program_of_the_same_kind(method: AttachMethod) -> None:
    """The kernel refuses a tail call into a program of another type or attach type."""
    walking = {
        "continuations": next(p for p in programs_of(method) if p.covered is Covered.RETURNING),
        "syscall_continuations": syscall_programs(SyscallMethod.TRACEPOINTS)[1],
        "code_programs": syscall_programs(SyscallMethod.TRACEPOINTS)[1],
    }
    following = continuations_of(method)
    assert following.keys() == walking.keys()
    for name, program in following.items():
        assert (program.type, program.attach_type) == (walking[name].type, walking[name].attach_type)


def test_programs_that_go_on_have_maps() -> None:
    """The source declares each map through which a walk continues."""
    maps = set(re.findall(r"^BPF_PROG_ARRAY\((\w+),", (bpf_directory() / "maps.h").read_text(), re.MULTILINE))
    assert continuations_of(AttachMethod.SESSION).keys() == maps


def test_only_raw_tracepoints_have_a_tracepoint() -> None:
    """A program for a raw tracepoint says which; no other has one."""
    of_methods = (program for method in AttachMethod for program in programs_of(method))
    programs = [*LIFE_PROGRAMS, *SYSCALL_PROGRAMS, *of_methods]
    for program in programs:
        assert (program.tracepoint is not None) == (program.type is ProgramType.RAW_TRACEPOINT), program


def test_attach_types_are_the_kernels() -> None:
    """The numbers of enum bpf_attach_type that uprobes are linked with (include/uapi/linux/bpf.h)."""
    assert [programs_of(method)[0].attach_type for method in AttachMethod] == [57, 48, 0]
    assert (AttachType.PERF_EVENT, AttachType.KPROBE_MULTI) == (41, 42)


@pytest.mark.parametrize("walker", WalkerKind)
@pytest.mark.parametrize("method", AttachMethod)
def test_shared_probes_can_walk_on(method: AttachMethod, walker: WalkerKind) -> None:
    """They are programs of perf events, at both ends; where walks take tail calls, the method's own.

    Only the method of perf events has one for a sampler's probes.
    """
    shared = shared_programs_of(method, walker)
    at_return = [program.at_return for program in shared]
    of_sampler = [program.covered is Covered.SAMPLED for program in shared]
    if method is AttachMethod.PERF:
        assert (at_return, of_sampler) == ([False, True, False], [False, False, True])
    else:
        assert (at_return, of_sampler) in (([], []), ([False, True], [False, False]))
    assert all(program.attach_type is AttachType.NONE for program in shared)
    if walker is WalkerKind.TAIL_CALLS:
        assert set(shared) <= set(programs_of(method))


@pytest.mark.parametrize("release", ["5.10.0-32-cloud-amd64", "5.14.21", "4.19"])
def test_a_kernel_that_is_too_old(release):
    """The message has its release, and the required one."""
    with pytest.raises(errors.KernelUnsupported, match=rf"{release} is too old: bpfleakd needs Linux 5.15"):
        check_release(release)


def test_a_kernel_that_is_new_enough():
    """The oldest one."""
    check_release("5.15.0-91-generic")


def test_what_a_kernel_has_not_got_is_no_unexpected_fallback():
    """Each method and walker has a release that it came with; distributions add their own numbers."""
    passed_over = {"session": "EINVAL", "multi": "a free was not seen", "may_goto": "EINVAL"}
    assert unexpected_fallbacks(passed_over, "6.1.0-50-cloud-amd64") == {}
    assert unexpected_fallbacks(passed_over, "6.8.0-60-generic") == {}
    assert unexpected_fallbacks(passed_over, "6.12.90+deb12-rt-amd64").keys() == {"multi", "may_goto"}
    assert unexpected_fallbacks(passed_over, "7.3-rc1") == passed_over
    assert {since(name) for name in (*AttachMethod, *WalkerKind)} == {"5.15", "6.9", "6.10", "6.13"}


@pytest.mark.parametrize("method", SyscallMethod)
def test_system_calls_are_seen_at_both_ends(method: SyscallMethod) -> None:
    """By the same functions, whatever they are attached to."""
    enter, exit_ = syscall_programs(method)
    assert (enter.function, exit_.function) == ("syscall_enter", "syscall_exit")
    assert (enter.at_return, exit_.at_return) == (False, True)


def test_system_calls_with_a_name() -> None:
    """The programs distinguish calls by number: each one that is attached to has a case there."""
    source = "".join((bpf_directory() / name).read_text() for name in ("space.h", "descriptors.h"))
    numbered = set(re.findall(r"SYSCALL_(\w+) = \d+", source))
    assert {call.upper() for call in (*SPACE_CALLS.at_entry, *SPACE_CALLS.at_return)} <= numbered
    assert {call.upper() for call in DESCRIPTOR_CALLS.at_entry} <= numbered
