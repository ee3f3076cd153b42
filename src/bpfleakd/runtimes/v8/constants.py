"""V8's description of its own layout: the constants `v8dbg_…`, made for debuggers that read core files.

They are 32-bit variables in the file that V8 is in (deps/v8/tools/gen-postmortem-metadata.py). They are
dynamic symbols, so a stripped file has them, too. Some change their name from version to version. Fields
without a constant are found by their content, and verified.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct
from msgspec.structs import fields

from bpfleakd.elf.image import ElfImage
from bpfleakd.elf.named_symbols import find_symbols

_PREFIX = "v8dbg_"
_VERSION = [f"_ZN2v88internal7Version{name}E" for name in ("6major_", "6minor_", "6build_", "6patch_")]

ReadWord = Callable[[int], int]
"""The 32 bits at one of the file's own addresses, in the process, with their sign. Raises OSError."""


class UntrustedHeap(Exception):
    """Why the JavaScript frames of a process cannot be read: a sentence for the user."""


class Constants(Struct, frozen=True):
    """Offsets in bytes from the beginning of an object, and the type numbers in maps."""

    map_type: int
    function_shared: int
    shared_data: int
    shared_name: int
    shared_script: int
    shared_flags: int
    script_source: int
    script_name: int
    string_length: int
    one_byte_chars: int
    two_byte_chars: int
    cons_first: int
    cons_second: int
    sliced_parent: int
    sliced_offset: int
    thin_actual: int
    external_resource: int
    array_data: int
    type_shared: int
    type_scope: int
    type_script: int
    type_weak_array: int
    not_string_mask: int
    representation_mask: int
    encoding_mask: int
    one_byte_tag: int
    sequential_tag: int
    cons_tag: int
    external_tag: int
    sliced_tag: int
    thin_tag: int
    frame_function: int
    frame_context: int
    scope_locals: int
    scope_first: int


_NAMES = {
    "map_type": "class_Map__instance_type__uint16_t",
    "function_shared": "class_JSFunction__shared__SharedFunctionInfo",
    "shared_data": "class_SharedFunctionInfo__function_data__Object",
    "shared_name": "class_SharedFunctionInfo__name_or_scope_info__Object",
    "shared_script": "class_SharedFunctionInfo__script_or_debug_info__HeapObject",
    "shared_flags": "class_SharedFunctionInfo__flags__int",
    "script_source": "class_Script__source__Object",
    "script_name": "class_Script__name__Object",
    "string_length": "class_String__length__int32_t",
    "one_byte_chars": "class_SeqOneByteString__chars__char",
    "two_byte_chars": "class_SeqTwoByteString__chars__char",
    "cons_first": "class_ConsString__first__String",
    "cons_second": "class_ConsString__second__String",
    "sliced_parent": "class_SlicedString__parent__String",
    "sliced_offset": "class_SlicedString__offset__SMI",
    "thin_actual": "class_ThinString__actual__String",
    "external_resource": "class_ExternalString__resource__Object",
    "array_data": "class_FixedArray__data__uintptr_t",
    "type_shared": "type_SharedFunctionInfo__SHARED_FUNCTION_INFO_TYPE",
    "type_scope": "type_ScopeInfo__SCOPE_INFO_TYPE",
    "type_script": "type_Script__SCRIPT_TYPE",
    "type_weak_array": "type_WeakFixedArray__WEAK_FIXED_ARRAY_TYPE",
    "not_string_mask": "IsNotStringMask",
    "representation_mask": "StringRepresentationMask",
    "encoding_mask": "StringEncodingMask",
    "one_byte_tag": "OneByteStringTag",
    "sequential_tag": "SeqStringTag",
    "cons_tag": "ConsStringTag",
    "external_tag": "ExternalStringTag",
    "sliced_tag": "SlicedStringTag",
    "thin_tag": "ThinStringTag",
    "frame_function": "off_fp_function",
    "frame_context": "off_fp_context",
    "scope_locals": "scopeinfo_idx_ncontextlocals",
    "scope_first": "scopeinfo_idx_first_vars",
}
_WORD_BYTES = 8
# Equal in every build for x86-64 without compressed pointers.
_FIXED = {"frame_function": -2 * _WORD_BYTES, "frame_context": -_WORD_BYTES}
_OFFSET_MAX = 4096


def read_constants(image: ElfImage, read_word: ReadWord) -> Constants | None:
    """The constants of the V8 in a file; None without V8. Raises Untrusted, BadElf or OSError."""
    symbols = find_symbols(image, [_PREFIX + name for name in _NAMES.values()])
    if not symbols:
        return None
    missing = [name for name in _NAMES.values() if _PREFIX + name not in symbols]
    if missing:
        raise UntrustedHeap(f"this version of V8 does not publish where it keeps {missing[0]}")
    found = {field: read_word(symbols[_PREFIX + name].vaddr) for field, name in _NAMES.items()}
    _check(found)
    return Constants(**found)


def read_version(image: ElfImage, read_word: ReadWord) -> str:
    """The version of V8, "?" if it is not stated. Raises BadElf or OSError."""
    symbols = find_symbols(image, _VERSION)
    if any(name not in symbols for name in _VERSION):
        return "?"
    return ".".join(str(read_word(symbols[name].vaddr)) for name in _VERSION)


def _check(found: Mapping[str, int]) -> None:
    if found["function_shared"] != 3 * _WORD_BYTES or found["shared_data"] != _WORD_BYTES:
        raise UntrustedHeap("its V8 has compressed pointers, or is a debug build")
    if any(found[name] != value for name, value in _FIXED.items()):
        raise UntrustedHeap("the frames of its V8 are not laid out as expected")
    offsets = [name for name in (field.name for field in fields(Constants)) if name not in _FIXED]
    if any(not 0 <= found[name] <= _OFFSET_MAX for name in offsets if name != "not_string_mask"):
        raise UntrustedHeap("the constants of its V8 are not plausible")
