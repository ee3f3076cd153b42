"""The known allocators, by the functions that they define.

`ALLOCATORS` is the complete list: to add an allocator, add rows. bpfleakd checks which of these functions a
file defines; its name does not matter, because allocators are preloaded, linked into programs and renamed.
One file may hold several.

Rules for rows:
  - Every function of an allocator that allocates or frees memory and that programs may call is listed. A
    function that always ends in a call of another listed one may be omitted: the other one is the outermost
    then.
  - A function has one role in every allocator.
  - C++ operators are only probed in files that define the rest of an allocator. Those of libstdc++ and libc++
    call malloc and free, which are probed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec import Struct
from msgspec.structs import replace

from bpfleakd.model.code.probe import FunctionRole

UNKNOWN = "other"
"""The name of all allocators that have no rows of their own."""


class AllocatorFunction(Struct, frozen=True):
    """A function to probe; without its `required` functions an allocator cannot be traced at all.

    `leading` is the number of arguments before those that its role is about (mimalloc's heap).
    """

    name: str
    role: FunctionRole
    required: bool = False
    leading: int = 0


class Allocator(Struct, frozen=True):
    """An allocator: a file that defines one of `signs`, and the required functions, contains it.

    `twin` is the function that malloc must be an alias of for the C library's names to count as this
    allocator's in that file; "" if they always count. `leaves` allocate without calling another function of
    the table, unless their code shows otherwise: if blocks are sampled, a leaf whose block is not recorded
    needs no return probe. (glibc's realloc and memalign pass some calls on to malloc.)
    """

    name: str
    signs: tuple[str, ...]
    functions: tuple[AllocatorFunction, ...]
    twin: str = ""
    leaves: frozenset[str] = frozenset()


def _rows(role: FunctionRole, names: str, *, leading: int = 0) -> tuple[AllocatorFunction, ...]:
    return tuple(AllocatorFunction(name, role, leading=leading) for name in names.split())


def _required(malloc: str, free: str) -> tuple[AllocatorFunction, ...]:
    return (
        AllocatorFunction(malloc, FunctionRole.SIZE_FIRST, required=True),
        AllocatorFunction(free, FunctionRole.RELEASE, required=True),
    )


# reallocarray is omitted here: in C libraries it ends in a call of realloc, unless it overflows.
_C_OPTIONAL = (
    *_rows(FunctionRole.CALLOC, "calloc"),
    *_rows(FunctionRole.REALLOC, "realloc"),
    *_rows(FunctionRole.POSIX_MEMALIGN, "posix_memalign"),
    *_rows(FunctionRole.SIZE_SECOND, "aligned_alloc memalign"),
    *_rows(FunctionRole.SIZE_FIRST, "valloc pvalloc"),
    # C23 added free_sized and free_aligned_sized.
    *_rows(FunctionRole.RELEASE, "cfree free_sized free_aligned_sized"),
)
_C_FUNCTIONS = (*_required("malloc", "free"), *_C_OPTIONAL)

# Itanium C++ ABI: w is new, a is new[], m is size_t; nothrow and aligned forms. Deletes may get the size.
_CXX_OPERATORS = (
    *_rows(
        FunctionRole.SIZE_FIRST,
        "_Znwm _Znam _ZnwmRKSt9nothrow_t _ZnamRKSt9nothrow_t _ZnwmSt11align_val_t _ZnamSt11align_val_t"
        " _ZnwmSt11align_val_tRKSt9nothrow_t _ZnamSt11align_val_tRKSt9nothrow_t",
    ),
    *_rows(
        FunctionRole.RELEASE,
        "_ZdlPv _ZdaPv _ZdlPvm _ZdaPvm _ZdlPvRKSt9nothrow_t _ZdaPvRKSt9nothrow_t"
        " _ZdlPvSt11align_val_t _ZdaPvSt11align_val_t _ZdlPvmSt11align_val_t _ZdaPvmSt11align_val_t"
        " _ZdlPvSt11align_val_tRKSt9nothrow_t _ZdaPvSt11align_val_tRKSt9nothrow_t",
    ),
)

OPERATORS_NEW = frozenset(row.name for row in _CXX_OPERATORS if row.role is FunctionRole.SIZE_FIRST)

# For allocators that also export their own names, and may lack those of the C library.
_REPLACEMENTS = (
    *_rows(FunctionRole.SIZE_FIRST, "malloc"),
    *_rows(FunctionRole.RELEASE, "free"),
    *_C_OPTIONAL,
    *_rows(FunctionRole.REALLOC_ARRAY, "reallocarray"),
    *_CXX_OPERATORS,
)
_SHARED_NAMES = frozenset(row.name for row in _REPLACEMENTS)


def _jemalloc(prefix: str) -> Allocator:
    """jemalloc(3). nallocx, sallocx and malloc_usable_size neither allocate nor free.

    xallocx keeps a block in place and returns its usable size: the block has grown or shrunk to the requested
    size if that fits, and is unchanged otherwise. The part from `extra` is the allocator's rounding.
    """
    own = (
        *_rows(FunctionRole.SIZE_FIRST, f"{prefix}mallocx"),
        *_rows(FunctionRole.REALLOC, f"{prefix}rallocx"),
        *_rows(FunctionRole.RESIZE, f"{prefix}xallocx"),
        *_rows(FunctionRole.RELEASE, f"{prefix}dallocx {prefix}sdallocx"),
    )
    if not prefix:
        functions = (*_C_FUNCTIONS, *own, *_CXX_OPERATORS)
        return Allocator(
            "jemalloc", ("mallocx",), functions, leaves=OPERATORS_NEW | {"malloc", "calloc", "mallocx"}
        )
    named = tuple(replace(row, name=prefix + row.name) for row in _C_FUNCTIONS)
    leaves = frozenset(f"{prefix}{name}" for name in ("malloc", "calloc", "mallocx"))
    return Allocator("jemalloc", (f"{prefix}malloc",), (*named, *own), leaves=leaves)


# gperftools/tcmalloc.h
_TCMALLOC = Allocator(
    "tcmalloc",
    ("tc_malloc",),
    (
        *_required("tc_malloc", "tc_free"),
        *_REPLACEMENTS,
        *_rows(
            FunctionRole.SIZE_FIRST,
            "tc_malloc_skip_new_handler tc_valloc tc_pvalloc tc_new tc_new_nothrow tc_newarray"
            " tc_newarray_nothrow tc_new_aligned tc_new_aligned_nothrow tc_newarray_aligned"
            " tc_newarray_aligned_nothrow",
        ),
        *_rows(FunctionRole.SIZE_SECOND, "tc_memalign"),
        *_rows(FunctionRole.CALLOC, "tc_calloc"),
        *_rows(FunctionRole.REALLOC, "tc_realloc"),
        *_rows(FunctionRole.POSIX_MEMALIGN, "tc_posix_memalign"),
        *_rows(
            FunctionRole.RELEASE,
            "tc_free_sized tc_cfree tc_delete tc_delete_sized tc_delete_nothrow tc_delete_aligned"
            " tc_delete_aligned_nothrow tc_delete_sized_aligned tc_deletearray tc_deletearray_sized"
            " tc_deletearray_nothrow tc_deletearray_aligned tc_deletearray_aligned_nothrow"
            " tc_deletearray_sized_aligned sdallocx tc_sdallocx",
        ),
    ),
    twin="tc_malloc",
    leaves=OPERATORS_NEW | {"malloc", "calloc", "tc_malloc", "tc_calloc", "tc_new", "tc_newarray"},
)

# mimalloc.h. mi_realpath, mi_mbsdup and mi_dupenv_s call mi_strdup, and mi_reallocarr calls mi_reallocarray.
_MIMALLOC = Allocator(
    "mimalloc",
    ("mi_malloc",),
    (
        *_required("mi_malloc", "mi_free"),
        *_REPLACEMENTS,
        *_rows(FunctionRole.REALLOC_OR_FREE, "reallocf"),
        *_rows(
            FunctionRole.SIZE_FIRST,
            "mi_malloc_small mi_zalloc mi_zalloc_small mi_malloc_aligned mi_malloc_aligned_at"
            " mi_zalloc_aligned mi_zalloc_aligned_at mi_valloc mi_pvalloc"
            " mi_new mi_new_nothrow mi_new_aligned mi_new_aligned_nothrow",
        ),
        *_rows(
            FunctionRole.SIZE_SECOND,
            "mi_memalign mi_aligned_alloc mi_heap_malloc mi_heap_malloc_small mi_heap_zalloc"
            " mi_heap_malloc_aligned mi_heap_malloc_aligned_at mi_heap_zalloc_aligned"
            " mi_heap_zalloc_aligned_at mi_heap_alloc_new",
        ),
        *_rows(FunctionRole.CALLOC, "mi_calloc mi_mallocn mi_calloc_aligned mi_calloc_aligned_at mi_new_n"),
        *_rows(
            FunctionRole.CALLOC,
            "mi_heap_calloc mi_heap_mallocn mi_heap_calloc_aligned mi_heap_calloc_aligned_at"
            " mi_heap_alloc_new_n",
            leading=1,
        ),
        *_rows(
            FunctionRole.REALLOC,
            "mi_realloc mi_rezalloc mi_realloc_aligned mi_realloc_aligned_at mi_rezalloc_aligned"
            " mi_rezalloc_aligned_at mi_new_realloc mi_expand mi__expand",
        ),
        *_rows(
            FunctionRole.REALLOC,
            "mi_heap_realloc mi_heap_rezalloc mi_heap_realloc_aligned mi_heap_realloc_aligned_at"
            " mi_heap_rezalloc_aligned mi_heap_rezalloc_aligned_at",
            leading=1,
        ),
        *_rows(
            FunctionRole.REALLOC_ARRAY,
            "mi_reallocn mi_recalloc mi_recalloc_aligned mi_recalloc_aligned_at mi_reallocarray"
            " mi_aligned_recalloc mi_aligned_offset_recalloc mi_new_reallocn",
        ),
        *_rows(
            FunctionRole.REALLOC_ARRAY,
            "mi_heap_reallocn mi_heap_recalloc mi_heap_recalloc_aligned mi_heap_recalloc_aligned_at",
            leading=1,
        ),
        *_rows(FunctionRole.REALLOC_OR_FREE, "mi_reallocf"),
        *_rows(FunctionRole.REALLOC_OR_FREE, "mi_heap_reallocf", leading=1),
        *_rows(FunctionRole.STRDUP, "mi_strdup mi_strndup mi_heap_strdup mi_heap_strndup"),
        *_rows(FunctionRole.POSIX_MEMALIGN, "mi_posix_memalign"),
        *_rows(FunctionRole.RELEASE, "mi_free_size mi_free_aligned mi_free_size_aligned mi_cfree"),
    ),
    twin="mi_malloc",
)

# A program that never frees is linked without musl's free.
_MUSL_FUNCTIONS = (
    AllocatorFunction("malloc", FunctionRole.SIZE_FIRST, required=True),
    *_rows(FunctionRole.RELEASE, "free"),
    *_C_OPTIONAL,
)

# If several match a file, the first whose twin is malloc there has the names of the C library and of C++.
ALLOCATORS = (
    Allocator("glibc", ("__libc_mallopt",), _C_FUNCTIONS, leaves=frozenset({"malloc", "calloc"})),
    _jemalloc(""),
    _jemalloc("je_"),
    _jemalloc("_rjem_"),
    _TCMALLOC,
    _MIMALLOC,
    Allocator("musl", ("__dls3", "__libc_malloc_impl"), _MUSL_FUNCTIONS, leaves=frozenset({"malloc"})),
    # An object that defines malloc and free is an allocator.
    Allocator(UNKNOWN, ("malloc",), (*_required("malloc", "free"), *_REPLACEMENTS[2:])),
)

# glibc's and musl's dynamic loaders call this to tell debuggers that libraries were loaded or unloaded
# (r_brk, link.h).
_LIBRARIES_CHANGED = AllocatorFunction("_dl_debug_state", FunctionRole.LIBRARIES_CHANGED)
_DYNAMIC_LOADER = Allocator("ld.so", (_LIBRARIES_CHANGED.name,), (_LIBRARIES_CHANGED,))

# Where CPython releases a code object: a pointer in its type leads there.
_CODE_RELEASED = AllocatorFunction("PyCode_Type.tp_dealloc", FunctionRole.CODE_RELEASED)
_CPYTHON = Allocator("cpython", ("_PyEval_EvalFrameDefault",), (_CODE_RELEASED,))

# A C library that is its own dynamic loader defines both; glibc's loader has a malloc for internal use only.
_C_LIBRARY_SIGN = "__libc_start_main"

# Every function that may be probed. A name has one role in all allocators.
FUNCTIONS: tuple[AllocatorFunction, ...] = tuple(
    {row.name: row for one in (*ALLOCATORS, _DYNAMIC_LOADER, _CPYTHON) for row in one.functions}.values()
)

# The other functions that `identify` needs.
SIGNS: frozenset[str] = frozenset(
    {_C_LIBRARY_SIGN, *(sign for allocator in ALLOCATORS for sign in allocator.signs)}
    - {function.name for function in FUNCTIONS}
)

# A file that defines none of these contains neither an allocator nor a dynamic loader nor CPython.
TELLING_NAMES: frozenset[str] = frozenset(_CPYTHON.signs).union(
    row.name
    for allocator in (*ALLOCATORS, _DYNAMIC_LOADER)
    for row in allocator.functions
    if row.role is FunctionRole.LIBRARIES_CHANGED or (row.required and row.role is FunctionRole.SIZE_FIRST)
)


def identify(defined: Mapping[str, int]) -> tuple[tuple[Allocator, AllocatorFunction], ...]:
    """The functions to probe in a file, each with the allocator that it belongs to.

    `defined` maps the names among FUNCTIONS and SIGNS that the file defines to their addresses.
    """
    loader = [(_DYNAMIC_LOADER, _LIBRARIES_CHANGED)] if _LIBRARIES_CHANGED.name in defined else []
    if loader and _C_LIBRARY_SIGN not in defined:
        return tuple(loader)
    python = [(_CPYTHON, _CODE_RELEASED)] if _CODE_RELEASED.name in defined else []
    present = [allocator for allocator in ALLOCATORS if _is_in(allocator, defined)]
    owner = next((allocator for allocator in present if _has_c_names(allocator, defined)), None)
    found = [
        (allocator, function)
        for allocator in present
        for function in allocator.functions
        if function.name in defined and (allocator is owner or function.name not in _SHARED_NAMES)
    ]
    return (*found, *loader, *python)


def _is_in(allocator: Allocator, defined: Collection[str]) -> bool:
    required = [function.name for function in allocator.functions if function.required]
    return any(sign in defined for sign in allocator.signs) and all(name in defined for name in required)


def _has_c_names(allocator: Allocator, defined: Mapping[str, int]) -> bool:
    if not any(function.name == "malloc" for function in allocator.functions) or "malloc" not in defined:
        return False
    return not allocator.twin or defined[allocator.twin] == defined["malloc"]
