"""Whether a Node.js program handles a signal itself, read from the handles of its main event loop.

Node.js opens its inspector on SIGUSR1, unless the program has its own handler (process.on): then libuv has
replaced Node's, and the signal would run the program's. The kernel does not distinguish handlers.

libuv keeps a pointer to the main loop, which `uv_default_loop` returns, and the loop a ring of its handles.
Their layout is equal in all versions 1.x of libuv, whose structures are its ABI (include/uv.h).
"""

from __future__ import annotations

import contextlib
import re
import struct
import time

from bpfleakd.elf.image import ElfImage
from bpfleakd.elf.named_symbols import find_symbols
from bpfleakd.errors import BpfleakdError
from bpfleakd.process.files.mapped_files import open_mapped
from bpfleakd.process.mappings import read_mappings
from bpfleakd.process.remote_memory import RemoteMemory

_MAYBE = re.compile(r"(?:^|/)(?:node(?:js)?|libnode|libuv)[^/]*$")

_FUNCTION = "uv_default_loop"
_CODE_BYTES = 48
# mov reg, [rip + offset]: the first loads the pointer.
_LOAD = re.compile(rb"[\x48\x4c]\x8b[\x05\x0d\x15\x1d\x25\x2d\x35\x3d](.{4})", re.DOTALL)

# uv_loop_t: data, active_handles, handle_queue.
_LOOP_HANDLES = 16
# uv_handle_t: data, loop, type, close_cb, handle_queue, u, next_closing, flags.
# uv_signal_t begins with it: signal_cb, signum.
_HANDLE_LOOP, _HANDLE_TYPE, _HANDLE_QUEUE = 8, 16, 32
_SIGNAL_NUMBER = 104
_HANDLE_BYTES = 112
_SIGNAL = 16
_TYPES_MAX = 18
_HANDLES_MAX = 100_000
_TRIES, _PAUSE_S = 5, 0.02


def find_loop_pointer(image: ElfImage) -> int | None:
    """The place of the pointer to the main loop in a file (its own addresses); None without libuv.

    Raises BadElf.
    """
    symbol = find_symbols(image, [_FUNCTION], (".dynsym",)).get(_FUNCTION)
    if symbol is None:
        return None
    code = image.read(symbol.vaddr, _CODE_BYTES)
    load = _LOAD.search(code)
    return symbol.vaddr + load.end() + struct.unpack("<i", load[1])[0] if load else None


def handles_signal(pid: int, number: int) -> bool | None:
    """Whether the program of a process handles a signal itself; None if that cannot be read."""
    try:
        with RemoteMemory(pid) as memory:
            pointer = _loop_pointer(pid)
            if pointer is None:
                return None
            for _ in range(_TRIES):
                # The process runs during the reading.
                with contextlib.suppress(OSError, ValueError):
                    return SignalHandles(memory, pointer).has(number)
                time.sleep(_PAUSE_S)
    except (BpfleakdError, OSError):
        pass
    return None


def _loop_pointer(pid: int) -> int | None:
    for mapping in read_mappings(pid):
        if not (mapping.executable and _MAYBE.search(mapping.path)):
            continue
        file = open_mapped(pid, mapping, str(pid))
        with ElfImage.open(file.descriptor) as image:
            vaddr, pointer = image.vaddr_of(mapping.offset), find_loop_pointer(image)
        if vaddr is not None and pointer is not None:
            return pointer + mapping.start - vaddr
    return None


class SignalHandles:
    """The signals that one program handles. `pointer` is the address of the pointer to its main loop."""

    def __init__(self, memory: RemoteMemory, pointer: int) -> None:
        self._memory = memory
        self._pointer = pointer

    def has(self, number: int) -> bool:
        """Whether there is a handle for a signal. Raises OSError or ValueError if that cannot be read."""
        memory = self._memory
        memory.renew()
        loop = memory.word(self._pointer)
        head = loop + _LOOP_HANDLES
        before, at = head, memory.word(head)
        for _ in range(_HANDLES_MAX):
            if memory.word(at + 8) != before:
                raise ValueError("its handles are no ring")
            if at == head:
                return False
            handle = at - _HANDLE_QUEUE
            fields = memory.read(handle, _HANDLE_BYTES)
            owner, type_ = struct.unpack_from("<Qi", fields, _HANDLE_LOOP)
            if owner != loop or not 0 < type_ < _TYPES_MAX:
                raise ValueError("its handles are not as expected")
            if type_ == _SIGNAL and struct.unpack_from("<i", fields, _SIGNAL_NUMBER)[0] == number:
                return True
            before, at = at, struct.unpack_from("<Q", fields, _HANDLE_QUEUE)[0]
        raise ValueError("it has too many handles")
