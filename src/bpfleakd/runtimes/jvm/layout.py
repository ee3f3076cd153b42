"""HotSpot's layout: offsets in bytes, of release builds for 64 bit.

Fields move from release to release; `VmStructs` has their offsets. Some also change their kind: an nmethod of
JDK 17 has addresses where one of JDK 25 has offsets, and keeps its debug information elsewhere (JDK-8329332,
JDK-8343789).
"""

from __future__ import annotations

from msgspec import Struct

from bpfleakd.runtimes.jvm.vm_structs import VmStructs

TYPES = frozenset(
    {
        *("CodeCache", "CodeHeap", "HeapBlock", "HeapBlock::Header", "VirtualSpace", "CodeBlob"),
        *(
            "GrowableArray<int>",
            "GrowableArrayBase",
            "CompiledMethod",
            "nmethod",
            "PcDesc",
            "Method",
            "ConstMethod",
        ),
        *(
            "ConstantPool",
            "Klass",
            "InstanceKlass",
            "Symbol",
            "AbstractInterpreter",
            "StubQueue",
            "PerfMemory",
        ),
        *("JVMFlag", "Abstract_VM_Version"),
    }
)
_HIDDEN_17 = "Method::_hidden"
_FRAME_CONSTANTS = ("frame::interpreter_frame_sender_sp_offset", "frame::interpreter_frame_last_sp_offset")
CONSTANTS = frozenset({_HIDDEN_17, *_FRAME_CONSTANTS})

# Constants that are not exported: Method::_flags is a u2 in 17 and no part of vmStructs later, where the flag
# is the 13th of ConstMethod's (constMethodFlags.hpp).
_HIDDEN = 1 << 12
# The part of each blob that is read; 17 needs 136 bytes.
_HEADER_MAX_BYTES = 512
# After the length and the capacity of a GrowableArray.
_ELEMENTS = 8


class CodeLayout(Struct, frozen=True):
    """The code cache: heaps, blocks, and the first `header_bytes` of a blob.

    `length_bytes` is the size of a block's length. `is_relative`: begin and end of the code are offsets.
    """

    heaps: int
    heaps_elements: int
    heap_memory: int
    heap_segments: int
    log2_segment: int
    space_low: int
    space_high: int
    block_bytes: int
    length_bytes: int
    used: int
    name: int
    size: int
    frame_size: int
    code_begin: int
    code_end: int
    is_relative: bool
    method: int
    read_bytes: int


class DebugLayout(Struct, frozen=True):
    """The debug information of a compiled method.

    `data` points to it: `data_begin` (None: `data` is its address) and `pcs_begin`, `pcs_end` and `metadata`
    are offsets in it or, if `pcs_in_blob`, in the blob. Of 25 on the metadata are behind the relocations of
    `mutable_data`, `relocation_size` long.
    """

    pcs_begin: int
    pcs_end: int
    pcs_in_blob: bool
    data: int
    data_begin: int | None
    metadata: int | None
    mutable_data: int | None
    relocation_size: int | None
    read_bytes: int
    is_excluding_zero: bool


class MethodLayout(Struct, frozen=True):
    """A method, its constant part, its class. `hidden` is the place of a u32 and its bit."""

    const_method: int
    flags: int | None
    hidden_bit: int
    const_flags: int
    const_bytes: int
    constants: int
    code_size: int
    name_index: int
    method_bytes: int
    pool_bytes: int
    pool_cache: int
    pool_holder: int
    pool_length: int
    pool_source_file: int | None
    klass_name: int
    klass_constants: int
    symbol_length: int
    symbol_body: int


class FlagLayout(Struct, frozen=True):
    """The options of the JVM: addresses of the pointer to them and of their number; each has `flag_bytes`."""

    flags: int
    count: int
    name: int
    value: int
    flag_bytes: int


class JvmLayout(Struct, frozen=True):
    """The whole layout. `interpreter` is the address of the pointer to the interpreter's code queue."""

    code: CodeLayout
    debug: DebugLayout | None
    method: MethodLayout
    interpreter: int
    queue_buffer: int
    queue_limit: int
    perf_start: int | None
    perf_end: int | None
    flags: FlagLayout | None


def layout_of(structs: VmStructs, version: int) -> JvmLayout:
    """The layout of a JVM. Raises ValueError that names the missing part."""
    try:
        expected = (-1, -2)
        if tuple(_signed(structs.constants[name]) for name in _FRAME_CONSTANTS) != expected:
            raise ValueError("its interpreter's frames are not as expected")
        code = _code(structs)
        return JvmLayout(
            code=code,
            debug=_debug(structs, version),
            method=_method(structs),
            interpreter=structs.statics["AbstractInterpreter", "_code"],
            queue_buffer=structs.offsets["StubQueue", "_stub_buffer"],
            queue_limit=structs.offsets["StubQueue", "_buffer_limit"],
            perf_start=structs.statics.get(("PerfMemory", "_start")),
            perf_end=structs.statics.get(("PerfMemory", "_end")),
            flags=flags_of(structs),
        )
    except KeyError as error:
        raise ValueError(f"it does not publish where {error.args[0]} is") from error


def _code(structs: VmStructs) -> CodeLayout:
    at = structs.offsets
    is_relative = ("CodeBlob", "_code_begin") not in at
    # The size of a block's header and the type of its length changed together (JDK-8331253).
    used = at["HeapBlock::Header", "_used"]
    compiled = "nmethod" if ("nmethod", "_method") in at else "CompiledMethod"
    places = {
        "name": at["CodeBlob", "_name"],
        "size": at["CodeBlob", "_size"],
        "frame_size": at["CodeBlob", "_frame_size"],
        "code_begin": at["CodeBlob", "_code_offset" if is_relative else "_code_begin"],
        "code_end": at["CodeBlob", "_data_offset" if is_relative else "_code_end"],
        "method": at[compiled, "_method"],
    }
    block_bytes = structs.sizes["HeapBlock"]
    read_bytes = -(-(block_bytes + max(places.values()) + 8) // 8) * 8
    if read_bytes > _HEADER_MAX_BYTES or used not in (4, 8):
        raise ValueError("code blobs are not as expected")
    return CodeLayout(
        heaps=structs.statics["CodeCache", "_heaps"],
        heaps_elements=at.get(("GrowableArray<int>", "_data"), _ELEMENTS),
        heap_memory=at["CodeHeap", "_memory"],
        heap_segments=at["CodeHeap", "_segmap"],
        log2_segment=at["CodeHeap", "_log2_segment_size"],
        space_low=at["VirtualSpace", "_low"],
        space_high=at["VirtualSpace", "_high"],
        block_bytes=block_bytes,
        length_bytes=used,
        used=used,
        is_relative=is_relative,
        read_bytes=read_bytes,
        **places,
    )


def _debug(structs: VmStructs, version: int) -> DebugLayout | None:
    at = structs.offsets
    excludes_zero = version >= 20  # JDK-8292758: UNSIGNED5 without bytes of zero
    if ("CompiledMethod", "_scopes_data_begin") in at:
        places = {
            "pcs_begin": at["nmethod", "_scopes_pcs_offset"],
            "pcs_end": at["nmethod", "_dependencies_offset"],
            "data": at["CompiledMethod", "_scopes_data_begin"],
            "metadata": at["nmethod", "_metadata_offset"],
        }
        return DebugLayout(
            **places,
            pcs_in_blob=True,
            data_begin=None,
            mutable_data=None,
            relocation_size=None,
            read_bytes=max(places.values()) + 8,
            is_excluding_zero=excludes_zero,
        )
    needed = (
        ("nmethod", "_immutable_data"),
        ("nmethod", "_scopes_data_offset"),
        ("CodeBlob", "_mutable_data"),
    )
    if not all(name in at for name in needed):
        # In 22 to 24, methods have names, without lines and inlined methods.
        return None
    places = {
        "pcs_begin": at["nmethod", "_scopes_pcs_offset"],
        "pcs_end": at["nmethod", "_scopes_data_offset"],
        "data": at["nmethod", "_immutable_data"],
        "data_begin": at["nmethod", "_scopes_data_offset"],
        "mutable_data": at["CodeBlob", "_mutable_data"],
        "relocation_size": at["CodeBlob", "_relocation_size"],
    }
    return DebugLayout(
        **places,
        pcs_in_blob=False,
        metadata=None,
        read_bytes=max(places.values()) + 8,
        is_excluding_zero=excludes_zero,
    )


def _method(structs: VmStructs) -> MethodLayout:
    at = structs.offsets
    hidden_bit = structs.constants.get(_HIDDEN_17)
    return MethodLayout(
        const_method=at["Method", "_constMethod"],
        flags=at.get(("Method", "_flags")) if hidden_bit is not None else None,
        hidden_bit=hidden_bit or _HIDDEN,
        const_flags=at.get(("ConstMethod", "_flags._flags")) or at["ConstMethod", "_flags"],
        const_bytes=structs.sizes["ConstMethod"],
        constants=at["ConstMethod", "_constants"],
        code_size=at["ConstMethod", "_code_size"],
        name_index=at["ConstMethod", "_name_index"],
        method_bytes=structs.sizes["Method"],
        pool_bytes=structs.sizes["ConstantPool"],
        pool_cache=at["ConstantPool", "_cache"],
        pool_holder=at["ConstantPool", "_pool_holder"],
        pool_length=at["ConstantPool", "_length"],
        pool_source_file=at.get(("ConstantPool", "_source_file_name_index")),
        klass_name=at["Klass", "_name"],
        klass_constants=at["InstanceKlass", "_constants"],
        symbol_length=at["Symbol", "_length"],
        symbol_body=at["Symbol", "_body"],
    )


def flags_of(structs: VmStructs) -> FlagLayout | None:
    """The places of the options; None if they are not published."""
    try:
        return FlagLayout(
            structs.statics["JVMFlag", "flags"],
            structs.statics["JVMFlag", "numFlags"],
            structs.offsets["JVMFlag", "_name"],
            structs.offsets["JVMFlag", "_addr"],
            structs.sizes["JVMFlag"],
        )
    except KeyError:
        return None


def _signed(value: int) -> int:
    return value - (1 << 32) if value >> 31 else value
