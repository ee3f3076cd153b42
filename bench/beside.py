"""Programs of a benchmark, compiled together with the daemon's source, whose inlines and maps they use."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from msgspec.structs import asdict

from bench.probes import HeapPoints
from bpfleakd.kernel import bpf
from bpfleakd.kernel.abi import COOKIE_SLOT_SHIFT, STACK, RecordingState
from bpfleakd.kernel.bpf import AttachType, ProgramType
from bpfleakd.kernel.compilation.compiled import map_descriptors
from bpfleakd.kernel.compilation.source import bpf_directory, flattened
from bpfleakd.kernel.loader import RING_FLAGS, Capacities
from bpfleakd.kernel.maps import Maps
from bpfleakd.kernel.pinned_maps import PINNED_MAPS
from bpfleakd.model.code.python_walk import PythonWalk
from bpfleakd.process.files.process_code import open_code
from bpfleakd.process.mappings import read_mappings
from bpfleakd.sandbox.helpers import Helpers
from bpfleakd.tracing.unwinding import Unwinding
from bpfleakd.unwind import table_builder
from bpfleakd.unwind.table_builder import TableBuilder

_PROGRAMS = Path(__file__).parent / "programs"
_LIVE_BLOCKS = 1 << 16


class BesidePrograms:
    """The programs `names` of bench/programs/`source`, loaded, with maps separate from any daemon's.

    `without`: text of the daemon's source, and its replacement. Raises ValueError unless it occurs exactly
    once.
    """

    def __init__(
        self,
        stack: contextlib.ExitStack,
        source: str,
        names: Sequence[str],
        without: Mapping[str, str] | None = None,
    ) -> None:
        import bcc

        os.environ["BCC_KERNEL_SOURCE"] = str(bpf_directory() / "shim")
        capacities = asdict(Capacities(processes=64, sites=64, stacks=64, threads=64))
        flags = [f"-DMAX_{name.upper()}={value}" for name, value in capacities.items()]
        flags += RING_FLAGS
        daemons = flattened(bpf_directory())
        for old, new in (without or {}).items():
            if daemons.count(old) != 1:
                raise ValueError(f"the daemon's source has {old!r} {daemons.count(old)} times")
            daemons = daemons.replace(old, new)
        text = daemons + f'#line 1 "{source}"\n' + (_PROGRAMS / source).read_text()
        module = bcc.BPF(text=text, cflags=flags)
        stack.callback(module.cleanup)
        self.descriptors: dict[str, int] = {}
        for name in names:
            instructions = module.dump_func(name.encode())
            fd = bpf.program_load(ProgramType.KPROBE, instructions, AttachType.UPROBE_MULTI, name)
            stack.callback(os.close, fd)
            self.descriptors[name] = fd
        self._map_fds = map_descriptors(bcc.lib, module.module)
        self._maps = Maps({name: os.dup(self._map_fds[name]) for name in PINNED_MAPS})
        stack.callback(self._maps.close)
        helpers = Helpers([table_builder.__name__])
        stack.callback(helpers.close)
        self._unwinding = Unwinding(self._maps.unwind, TableBuilder(helpers))

    def follow(self, pid: int) -> None:
        """Set up tables for a process, including the walker's, as an attach does."""
        self._maps.add_process(pid, _LIVE_BLOCKS)
        self._unwinding.follow(open_code(pid, read_mappings(pid)), wait_s=30)
        self._maps.set_state(pid, RecordingState.RECORDING)

    def set_python(self, pid: int, walk: PythonWalk) -> None:
        """Set whether walks take the Python frames of a process: none if `walk` has no loops."""
        # The programs release no code.
        self._maps.set_python(pid, walk, sees_releases=True)

    @contextlib.contextmanager
    def attached(self, name: str, points: HeapPoints, pid: int) -> Iterator[None]:
        """One program at the return of malloc."""
        cookies = {points.malloc: self._maps.slot_of(pid) << COOKIE_SLOT_SHIFT}
        link = bpf.link_uprobe_multi(
            self.descriptors[name], AttachType.UPROBE_MULTI, points.path, cookies, pid, at_return=True
        )
        try:
            yield
        finally:
            os.close(link)

    def last_stack(self, pid: int) -> tuple[int, int]:
        """Depth and end of the last stack that a program saw in the main thread."""
        depth, end, _words = self.last_words(pid)
        return depth, end

    def last_words(self, pid: int) -> tuple[int, int, Sequence[int]]:
        """Depth, end and words of the same."""
        fd = self._map_fds["threads"]
        value_bytes = bpf.map_info(fd).value_bytes
        value = bpf.map_lookup(fd, ((pid << 32) | pid).to_bytes(8, "little"), value_bytes)
        assert value, "the program did not run"
        # struct thread ends with its stack.
        stack = np.frombuffer(value, STACK, offset=value_bytes - STACK.itemsize)[0]
        return int(stack["depth"]), int(stack["end"]), stack["frames"][: stack["depth"]].tolist()
