"""Turns addresses into named frames, for one process.

Rules:
- The first address of a stack is exact. All others are return addresses: look up the byte before, show the
  address itself.
- Code in an ELF file gets names from its symbols, code in the vdso from our own vdso. Code in any other
  memory gets names from a runtime that is read live, else from the perf map, else from a runtime that answers
  requests. The runtime also names managed and interpreted frames. Everything else is unknown, never guessed.
- Names are cached by mapping and address, those of run-time compiled code only until the perf map or the
  runtime's methods change. Addresses outside all mappings are not cached: the caller reads the mappings
  again, and counts them if they are still outside.
- Unmapped code keeps its names: a stack identifies the code of its addresses (mapping_index.py).
- If a stack ends in addresses outside all mappings, the walk has followed something that was not a frame
  pointer: these addresses are omitted, and the stack is marked as truncated.
- All of this works after the process ended, with files that are open or can still be opened.
- No caller waits for a file or a name. While the names in a file are still to come (name_service.py), a frame
  is the file and the offset, and the stack is `pending`.

Not thread-safe, except for `is_pending`, `hurry`, `wait`, `readable` and `vtables`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TypeAlias

from bpfleakd.elf.vdso import VDSO
from bpfleakd.model.code.managed_frame import is_address
from bpfleakd.model.code.mapping import CodeMapping, LoadedCode, Mapping
from bpfleakd.model.code.method import FrameNames, ManagedNames, MethodSource
from bpfleakd.model.code.stack import Frame, FrameKind, RawStack, Stack, StackEnd
from bpfleakd.model.code.stack_word import address_of
from bpfleakd.printable import printable
from bpfleakd.process.files.mapped_files import OpenedFile
from bpfleakd.process.files.rooted_open import seen_path
from bpfleakd.symbols.bounded_cache import BoundedCache
from bpfleakd.symbols.installed_code import is_installed_file
from bpfleakd.symbols.mapping_index import IndexedMapping, MappingIndex
from bpfleakd.symbols.module_cache import DebugSearch, Module, ModuleCache
from bpfleakd.symbols.name_service import NameService
from bpfleakd.symbols.native_frames import ModuleName, ModulePlace, native_frames
from bpfleakd.symbols.perf_map import PerfMap
from bpfleakd.symbols.process_files import ProcessFiles
from bpfleakd.symbols.runtime_frames import (
    interpreted_frames,
    is_interpreted,
    jit_frame,
    method_frames,
    named_managed_frames,
)
from bpfleakd.symbols.vdso import own_vdso

LOSS_REASONS = (
    "unknown_addresses",
    "unreadable_files",
    "perf_map_junk_lines",
    "perf_map_skipped_bytes",
    "perf_map_dropped_entries",
    "perf_map_refused",
    "names_over_budget",
)

# A word of a stack and whether its address is exact; the frames there, and the build-id of their file.
_Place: TypeAlias = tuple[int, bool]
_Named: TypeAlias = tuple[tuple[Frame, ...], str | None]
_Key: TypeAlias = tuple[int, int, bool]

# The registers have its caller.
_CERTAIN_FRAMES = 2
_FRAMES_MAX = 8_192
# Each takes some 50 us.
_OPENED_AT_ONCE = 128


class Symbolizer:
    """Names the stacks of a process.

    `open_file` opens the file of a mapping, now; `owner` stands for the process, and `debug_in_root` finds
    debug files that only it sees, below its root, whose path in /proc is `root_path`. `modules` and `names`
    are shared and stay open on `close`; the perf map is closed. `unknown_addresses` counts the addresses that
    two readings of the mappings did not cover, `lacked_total` the calls whose results lacked names that were
    still to come.
    """

    def __init__(
        self,
        owner: str,
        open_file: Callable[[Mapping], OpenedFile],
        modules: ModuleCache,
        *,
        debug_in_root: DebugSearch | None = None,
        perf_map: PerfMap | None = None,
        names: NameService | None = None,
        root_path: str = "/",
    ) -> None:
        self.unknown_addresses = 0
        self.owner = owner
        self._files = ProcessFiles(open_file, modules, owner, debug_in_root)
        self._perf_map = perf_map
        self._names = names
        self._root_path = root_path
        self._space = MappingIndex()
        self._known: BoundedCache[_Key, _Named] = BoundedCache(_FRAMES_MAX)
        self._known_jit: BoundedCache[_Key, _Named] = BoundedCache(_FRAMES_MAX)
        self._jit_generation: tuple[int, ...] = ()
        self._methods: Sequence[MethodSource] = ()
        self._frames: FrameNames | None = None
        self._managed: ManagedNames | None = None
        self._updates = 0
        # Of the last call: the places without names, and those of them whose names are still to come.
        self._missing: set[_Place] = set()
        self._awaited: set[_Place] = set()
        self.lacked_total = 0
        self._not_covered: BoundedCache[int, int] = BoundedCache(_FRAMES_MAX)

    @property
    def losses(self) -> dict[str, int]:
        """Missing names, by LOSS_REASONS; without zeroes."""
        losses = {"unknown_addresses": self.unknown_addresses, "unreadable_files": self._files.unreadable}
        losses |= self._perf_map.losses if self._perf_map else {}
        losses["names_over_budget"] = self._names.given_up(self.owner) if self._names else 0
        return {name: count for name, count in losses.items() if count}

    @property
    def is_pending(self) -> bool:
        """Whether requested names are still to come."""
        return self._names is not None and self._names.is_pending(self.owner)

    def hurry(self) -> None:
        """Find the pending names soon (`NameService.hurry`)."""
        if self._names is not None:
            self._names.hurry()

    def wait(self, timeout_s: float) -> bool:
        """Wait for requested names; False if they take longer. Not for the tracing thread."""
        return self._names is None or self._names.wait(self.owner, timeout_s)

    def readable(self, names: Collection[str], limit_s: float) -> dict[str, str]:
        """Demangle names; those that take longer are missing. Waits: not for the tracing thread."""
        return self._names.readable(names, limit_s) if self._names else {}

    def vtables(self, mapping: Mapping, offsets: Sequence[int], limit_s: float) -> dict[int, str]:
        """The mangled names of classes, by the offset of their vtables in a file, if these have symbols.

        Waits, so it is not for the tracing thread.
        """
        if self._names is None or not self._files.is_file(mapping):
            return {}
        try:
            opened = self._files.open(mapping)
        except OSError:
            return {}
        return self._names.vtables(opened.descriptor, offsets, limit_s)

    def update_mappings(self, mappings: Sequence[Mapping]) -> None:
        """Use these mappings, which are all of the process', from now on.

        Opens their files and the perf map, because they become inaccessible when the process ends.
        """
        self._space.update(mappings)
        self._updates += 1
        self.hold_perf_map()
        for mapping in mappings:
            if mapping.executable:
                self._files.module_of(mapping)

    def note_loaded(self, loaded: Sequence[LoadedCode]) -> None:
        """Add code that was mapped since the attach and may be gone; called after `update_mappings`.

        Opens a limited number of its files, as far as they can be found.
        """
        for mapping in self._space.note_loaded(loaded)[:_OPENED_AT_ONCE]:
            self._files.module_of(mapping)

    def hold_perf_map(self) -> None:
        """Open the perf map, if any: its names stay readable even if the file is removed."""
        if self._perf_map:
            self._perf_map.open()

    def use_methods(self, sources: Sequence[MethodSource]) -> None:
        """Use these sources for names of run-time compiled code that the perf map lacks."""
        self._methods = sources
        self._jit_generation = ()

    def use_frames(self, source: FrameNames | None) -> None:
        """Use this source for the names of an interpreter's frames."""
        self._frames = source

    def use_managed(self, source: ManagedNames | None) -> None:
        """Use this source for the names of managed frames."""
        self._managed = source

    def code_mappings(self) -> tuple[CodeMapping, ...]:
        """The mapped executable files, by address."""
        return tuple(
            CodeMapping(mapping.start, mapping.end, mapping.offset, mapping.path, module.build_id)
            for mapping in self._space.mappings
            if mapping.executable and (module := self._files.module_of(mapping))
        )

    def covers(self, addresses: Iterable[int]) -> bool:
        """Whether all these addresses (exact ones or return addresses) are in known mappings."""
        return all(
            self._space.find(address) or self._space.find(address - 1)
            for address in addresses
            if is_address(address)
        )

    def symbolize(self, stacks: Sequence[RawStack]) -> list[Stack]:
        """Name stacks, in order. Never fails: an unknown address has a frame without names."""
        stacks = [self._without_strays(stack) for stack in stacks]
        managed = [named_managed_frames(stack, self._managed) for stack in stacks]
        places = {
            place for stack, known in zip(stacks, managed, strict=True) for place in _places(stack, known)
        }
        named = self._names_of(places)
        # They may have arrived since the request, so another call may find them.
        is_awaited = self._awaited and self._names and not self._names.is_over_budget(self.owner)
        pending = self._awaited if is_awaited else frozenset()
        self.lacked_total += bool(pending)
        return [
            _stack(stack, named, known, interpreted_frames(stack, self._frames), pending)
            for stack, known in zip(stacks, managed, strict=True)
        ]

    def close(self) -> None:
        """Release everything that belongs to this process alone."""
        self._frames = self._managed = None
        if self._perf_map:
            self._perf_map.close()
        if self._names:
            self._names.forget(self.owner)

    def _without_strays(self, stack: RawStack) -> RawStack:
        kept = len(stack.addresses)
        while kept > _CERTAIN_FRAMES and not self.covers(stack.addresses[kept - 1 : kept]):
            kept -= 1
        if kept == len(stack.addresses):
            return stack
        end = StackEnd.FRAME_POINTER_END if stack.end is StackEnd.BOTTOM else stack.end
        return RawStack(stack.addresses[:kept], end, stack.checks)

    def _note_not_covered(self, address: int) -> None:
        first_noted = self._not_covered.get(address)
        if first_noted is None:
            self._not_covered.put(address, self._updates)
        elif 0 <= first_noted < self._updates:
            self._not_covered.put(address, -1)
            self.unknown_addresses += 1

    def _names_of(self, places: Iterable[_Place]) -> dict[_Place, _Named]:
        named: dict[_Place, _Named] = {}
        by_region: dict[IndexedMapping, list[_Place]] = {}
        for place in places:
            region = self._space.find(_code_word(place))
            if region is None:
                self._note_not_covered(place[0])
                named[place] = _unknown(place, None)
            elif known := self._known.get((region.number, *place)):
                named[place] = known
            else:
                by_region.setdefault(region, []).append(place)
        not_elf = {}
        self._missing, self._awaited = set(), set()
        for region, missing in by_region.items():
            found = self._module_at(region.mapping)
            if found is None:
                if self._files.is_file(region.mapping) and not self._space.is_mapped(region):
                    named |= {place: _unloaded(place, region.mapping) for place in missing}
                else:
                    not_elf[region] = missing
                continue
            for place, frames in self._native(region, *found, missing):
                named[place] = frames
                if place not in self._missing:
                    self._known.put((region.number, *place), frames)
        return named | self._jit(not_elf)

    def _module_at(self, mapping: Mapping) -> tuple[Module, ModuleName] | None:
        if mapping.path == VDSO:
            vdso = own_vdso()
            # A vdso of another size is a different one: that of 32-bit programs.
            same = vdso is not None and vdso.size_bytes == mapping.end - mapping.start
            return (vdso.module, ModuleName(VDSO, FrameKind.VDSO)) if vdso and same else None
        module = self._files.module_of(mapping)
        if module is None:
            return None
        is_library = is_installed_file(seen_path(mapping.path, self._root_path))
        name = ModuleName(_file_name(mapping), FrameKind.NATIVE, is_library)
        return module, name

    def _native(
        self, region: IndexedMapping, module: Module, name: ModuleName, places: Sequence[_Place]
    ) -> Iterable[tuple[_Place, _Named]]:
        module_places = [_module_place(region.mapping, module, place) for place in places]
        wanted = [
            (p.code_vaddr, p.vaddr) for p in module_places if p.code_vaddr is not None and p.vaddr is not None
        ]
        known = self._names.names_so_far(self.owner, module, wanted) if self._names else {}
        if self._names and len(known) < len(wanted):
            missing = {
                place: at.code_vaddr
                for place, at in zip(places, module_places, strict=True)
                if at.code_vaddr is not None and at.code_vaddr not in known
            }
            failed = self._names.failed(module, missing.values())
            self._missing |= missing.keys()
            self._awaited |= {place for place, code in missing.items() if code not in failed}
        frames = native_frames(name, module_places, known)
        return zip(places, ((found, module.build_id) for found in frames), strict=True)

    def _jit(self, by_region: dict[IndexedMapping, list[_Place]]) -> dict[_Place, _Named]:
        if by_region:
            generation = self._refreshed_jit()
            if generation != self._jit_generation:
                self._known_jit.clear()
                self._jit_generation = generation
        named: dict[_Place, _Named] = {}
        for region, places in by_region.items():
            for place in places:
                key = (region.number, *place)
                named[place] = self._known_jit.get(key) or self._looked_up(region.mapping, place)
                self._known_jit.put(key, named[place])
        return named

    def _looked_up(self, mapping: Mapping, place: _Place) -> _Named:
        live = self._by_methods(place, is_live=True)
        if live is not None:
            return live
        address, code_address = address_of(place[0]), address_of(_code_word(place))
        frame = jit_frame(self._perf_map, address, code_address) if self._perf_map else None
        if frame is not None:
            return (frame,), None
        asked = self._by_methods(place, is_live=False)
        if asked is not None:
            return asked
        return _unknown(place, _file_name(mapping) if self._files.is_file(mapping) else None)

    def _by_methods(self, place: _Place, *, is_live: bool) -> _Named | None:
        for source in self._methods:
            if source.is_live is is_live:
                found = source.find(address_of(_code_word(place)))
                if found is not None:
                    return method_frames(found, address_of(place[0])), None
        return None

    def _refreshed_jit(self) -> tuple[int, ...]:
        if self._perf_map:
            self._perf_map.refresh()
        perf_map = self._perf_map.generation if self._perf_map else 0
        return perf_map, *(source.generation for source in self._methods)


def _places(stack: RawStack, managed: Collection[int]) -> Iterable[_Place]:
    if stack.end is StackEnd.LOST:
        return ()
    return (
        (address, index == 0)
        for index, address in enumerate(stack.addresses)
        if is_address(address) and index not in managed
    )


def _code_word(place: _Place) -> int:
    word, exact = place
    return word if exact else word - 1


def _module_place(mapping: Mapping, module: Module, place: _Place) -> ModulePlace:
    code_vaddr = module.vaddr_of(address_of(_code_word(place)) - mapping.start + mapping.offset)
    word, exact = place
    vaddr = code_vaddr if code_vaddr is None or exact else code_vaddr + 1
    return ModulePlace(address_of(word), vaddr, code_vaddr)


def _unknown(place: _Place, module: str | None) -> _Named:
    return (Frame(None, module, None, None, address_of(place[0]), FrameKind.UNKNOWN),), None


def _unloaded(place: _Place, mapping: Mapping) -> _Named:
    """The place in a file that is gone with its names, if the file's own addresses equal its offsets."""
    address = address_of(place[0])
    offset = address - mapping.start + mapping.offset
    name = f"[unloaded {_file_name(mapping)}]"
    return (Frame(None, name, offset, None, address, FrameKind.NATIVE),), None


def _file_name(mapping: Mapping) -> str:
    return printable(mapping.path.rsplit("/", 1)[-1])


def _stack(
    stack: RawStack,
    named: dict[_Place, _Named],
    managed: dict[int, tuple[Frame, ...]],
    interpreted: Iterator[tuple[Frame, ...]],
    pending: Collection[_Place],
) -> Stack:
    frames: list[Frame] = []
    build_ids: list[str | None] = []
    addresses = () if stack.end is StackEnd.LOST else stack.addresses
    for index, address in enumerate(addresses):
        found: tuple[Frame, ...]
        build_id = None
        if index in managed:
            found = managed[index]
        elif is_interpreted(address):
            found = next(interpreted)
        elif is_address(address):
            found, build_id = named[(address, index == 0)]
        else:
            # What the frame before is of.
            continue
        frames += found
        build_ids += [build_id] * len(found)
    truncated = None if stack.end is StackEnd.BOTTOM else stack.end
    is_pending = any(place in pending for place in _places(stack, managed))
    return Stack(tuple(frames), tuple(build_ids), truncated, is_pending)
