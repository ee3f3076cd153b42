"""The addresses of a process' allocator functions, and the stacks that contain one."""

from __future__ import annotations

from bisect import bisect_right

from bpfleakd.model.code.stack import RawStack
from bpfleakd.model.code.stack_word import address_of
from bpfleakd.tracing.attaching.attachment import Attachment

# A process may map an allocator's library any number of times.
_FUNCTIONS_MAX = 16_384
# The place in the stack of a call of brk: behind brk and sbrk.
_CALLER_OF_SBRK = 2


class AllocatorFunctions:
    """The functions in the files of an `attachment`, at their addresses at that time."""

    def __init__(self, attachment: Attachment) -> None:
        self.attachment = attachment
        self._program = attachment.process.exe
        self._starts, self._ends = _functions_in_memory(attachment)

    def are_in(self, stack: RawStack) -> bool:
        """Whether a stack contains one of them."""
        return self._innermost_in(stack) is not None

    def have_called(self, stack: RawStack) -> bool:
        """Whether the function that made a system call (`addresses[1]`) is in the file of an allocator.

        The file is that of the innermost of these functions: others may call from it for another purpose.
        """
        innermost = self._innermost_in(stack)
        if not innermost:
            return False
        inside, caller = (self._file_at(address_of(stack.addresses[place]) - 1) for place in (innermost, 1))
        return inside is not None and inside == caller

    def caller_of_sbrk(self, stack: RawStack) -> int | None:
        """Where sbrk returns to in a call of brk, if only an allocator calls it there; otherwise None.

        That is so in a C library, which calls its own sbrk only for malloc; a program that contains both may
        have other callers.
        """
        if self._innermost_in(stack) is None or len(stack.addresses) < _CALLER_OF_SBRK + 1:
            return None
        addresses = [address_of(word) for word in stack.addresses[1 : _CALLER_OF_SBRK + 1]]
        files = {self._file_at(address - 1) for address in addresses}
        return addresses[-1] if len(files) == 1 and files.isdisjoint((None, self._program)) else None

    def _innermost_in(self, stack: RawStack) -> int | None:
        for place, word in enumerate(stack.addresses):
            address = address_of(word)
            # A return address belongs to the call before it.
            index = bisect_right(self._starts, address - (place > 0)) - 1
            if index >= 0 and address - (place > 0) < self._ends[index]:
                return place
        return None

    def _file_at(self, address: int) -> str | None:
        files = (one.path for one in self.attachment.mappings if one.start <= address < one.end)
        return next(files, None)


def _functions_in_memory(attachment: Attachment) -> tuple[list[int], list[int]]:
    """Begin and end of functions that allocate or free, in order."""
    ranges: dict[str | None, tuple[tuple[int, int], ...]] = {}
    for file in attachment.files:
        ranges[file.module] = (*ranges.get(file.module, ()), *file.ranges)
    found: list[tuple[int, int]] = []
    for mapping in attachment.mappings:
        if mapping.executable and len(found) < _FUNCTIONS_MAX:
            bias, size_bytes = mapping.start - mapping.offset, mapping.end - mapping.start
            found += (
                (start + bias, end + bias)
                for start, end in ranges.get(mapping.path, ())
                if mapping.offset <= start < mapping.offset + size_bytes
            )
    found.sort()
    return [start for start, _end in found], [end for _start, end in found]
