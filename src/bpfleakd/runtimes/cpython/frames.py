"""Names for the words that the stack walker records for Python frames.

A word contains the address of a code object, which may be freed and its memory reused. So a frame gets a name
only if the object at the address now, or at its first reading, is the one that the walker saw: each word
contains some bits of a hash of the code object, and the stack has hashes over every few frames, which must
match as a whole. Other frames have no name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import islice, product

from msgspec import Struct

from bpfleakd.model.code.method import Method
from bpfleakd.model.code.python_walk import PythonWalk
from bpfleakd.model.code.stack import RawStack
from bpfleakd.runtimes.cpython.code_object import CodeObject, CodeObjectReader, hash_of
from bpfleakd.symbols.bounded_cache import BoundedCache
from bpfleakd.symbols.installed_code import is_installed_script

# bpf/abi_python.h; kernel/abi.py mirrors it, and a test compares these with it.
PYTHON_FRAME = 1 << 63
_CODE_SHIFT, _UNIT_BITS, _CHECK_BITS = 20, 14, 6
_UNIT_BYTES = 2
_UNKNOWN_UNIT = (1 << _UNIT_BITS) - 1

_SEGMENT_FRAMES = 4

_ADDRESSES_MAX = 32_768
# A code object has some 150 bytes of lines and 1,500 in total, so this is enough for 5,000.
_KNOWN_MAX_BYTES = 8 << 20
# How many code objects of one address are remembered, and how many combinations of them are tried.
_CODES_AT_ADDRESS_MAX = 4
_CHOICES_MAX = 256
# A code object with its strings, without their text.
_OBJECT_BYTES = 500

# <frozen importlib._bootstrap>, <frozen zipimport>; and code that typing, dataclasses or collections
# generate.
_OWN = re.compile(r"<frozen [\w.]+>|<shim>|<__array_function__ internals>")
_PACKAGE = re.compile(r"/(?:site|dist)-packages/([^/]+)")
_LIBRARY = re.compile(r"/lib(?:64)?/python3(?:\.\d+t?)?(?:\.zip)?/")


class ArenaCode(Struct, frozen=True):
    """How pymalloc maps memory: the size, and the interpreter's code that does it (`text`: start, end)."""

    size_bytes: int
    text: tuple[int, int]


class _Known(Struct, frozen=True):
    code: CodeObject
    bits: int


class PythonFrames:
    """Names frames of one process; those of the standard library belong to `interpreter_module`.

    Code objects are remembered by address, up to a limit; `note` reads them early.
    """

    def __init__(
        self,
        reader: CodeObjectReader,
        interpreter_module: str,
        walk: PythonWalk,
        arena: ArenaCode | None = None,
    ) -> None:
        self._reader = reader
        self._interpreter_module = interpreter_module
        self.walk = walk
        self._arena = arena
        self._known: BoundedCache[int, tuple[_Known, ...]] = BoundedCache(
            _ADDRESSES_MAX, _bytes_of, _KNOWN_MAX_BYTES
        )

    def maps_arena(self, size_bytes: int, stack: Callable[[], RawStack]) -> bool:
        """Whether pymalloc maps an arena: memory of that size, mapped by the interpreter's own code."""
        arena = self._arena
        if arena is None or size_bytes != arena.size_bytes:
            return False
        # The first is the C library's mmap.
        return any(arena.text[0] <= address < arena.text[1] for address in stack().addresses[:2])

    def address_of(self, word: int) -> int:
        """The address of a frame's code object."""
        return code_address(word)

    def note(self, words: Iterable[int]) -> None:
        """Read the code objects of these frames now, because they may be gone when they are shown."""
        for word in words:
            if word & PYTHON_FRAME:
                self._codes_of(word)

    def find(self, words: Sequence[int], checks: Sequence[int]) -> list[tuple[Method, ...] | None]:
        """The methods of a stack's Python frames, innermost first; None for unknown ones.

        Empty for a frame that Python itself hides, too. `checks` are the stack's hashes over the code objects
        of each segment of frames.
        """
        methods: list[tuple[Method, ...] | None] = []
        for number, check in enumerate(checks):
            begin = number * _SEGMENT_FRAMES
            end = begin + _SEGMENT_FRAMES if number + 1 < len(checks) else len(words)
            methods += self._segment(words[begin:end], check)
        return methods

    def _segment(self, words: Sequence[int], check: int) -> list[tuple[Method, ...] | None]:
        # One code object in 64 has the same bits as the one that was at its address before.
        for read_again in (False, True):
            choices = [self._codes_of(word, read_again=read_again) for word in words]
            for chosen in islice(product(*choices), _CHOICES_MAX):
                if hash_of(code.check for code in chosen) == check:
                    return [self._method(word, code) for word, code in zip(words, chosen, strict=True)]
        return [None] * len(words)

    def _codes_of(self, word: int, *, read_again: bool = False) -> list[CodeObject]:
        address, bits = code_address(word), word & ((1 << _CHECK_BITS) - 1)
        known = self._known.get(address) or ()
        if read_again or not any(one.bits == bits for one in known):
            code = self._reader.read(address)
            found = _Known(code, _bits_of(code.check)) if code else None
            if found is not None and found not in known:
                known = (found, *known)[:_CODES_AT_ADDRESS_MAX]
                self._known.put(address, known)
        return [one.code for one in known if one.bits == bits]

    def _method(self, word: int, code: CodeObject) -> tuple[Method, ...]:
        unit = word >> _CHECK_BITS & _UNKNOWN_UNIT
        if unit < code.first_traced:
            return ()
        line = None if unit == _UNKNOWN_UNIT else code.line(unit * _UNIT_BYTES)
        module = module_of(code.file, self._interpreter_module)
        file, line = code.file.rsplit("/", 1)[-1], line or code.first_line
        return (Method(code.function, module, file, line, is_installed_script(code.file)),)


def code_address(word: int) -> int:
    """The address of the code object of a frame's word."""
    return (word & ~PYTHON_FRAME) >> _CODE_SHIFT << 4


def _bytes_of(known: tuple[_Known, ...]) -> int:
    """The approximate memory of code objects at one address."""
    return sum(
        _OBJECT_BYTES + len(one.code.lines) + 4 * (len(one.code.function) + len(one.code.file))
        for one in known
    )


def _bits_of(check: int) -> int:
    return check >> (64 - _CHECK_BITS)


def module_of(file: str, interpreter_module: str) -> str:
    """An installed file's package, `interpreter_module` for the standard library, else the file's name."""
    package = _PACKAGE.search(file)
    if package:
        return package[1].removesuffix(".py")
    if _OWN.fullmatch(file) or _LIBRARY.search(file):
        return interpreter_module
    name = file.rsplit("/", 1)[-1]
    return name.removesuffix(".py") or name or file
