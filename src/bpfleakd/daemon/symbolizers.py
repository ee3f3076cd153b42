"""Symbolizers of processes, with shared data: open files, and known names."""

from __future__ import annotations

from pathlib import PurePosixPath

from bpfleakd.process.files.debug_search import debug_file_in_root, has_our_root
from bpfleakd.process.files.mapped_files import open_mapped, open_unchanged
from bpfleakd.process.files.rooted_open import root_of
from bpfleakd.process.process import GONE
from bpfleakd.sandbox.helpers import Helpers
from bpfleakd.symbols.module_cache import ModuleCache
from bpfleakd.symbols.name_service import NameService
from bpfleakd.symbols.perf_map import PerfMap
from bpfleakd.symbols.symbolizer import Symbolizer
from bpfleakd.tracing.attaching.attachment import Attachment


class Symbolizers:
    """Creates symbolizers of attached processes; helpers may first spend `names_s` on the names of each."""

    def __init__(self, helpers: Helpers, names_s: float) -> None:
        self._modules = ModuleCache()
        self.names = NameService(helpers, budget_s=names_s)

    def of(self, attachment: Attachment) -> Symbolizer:
        """The symbolizer of a process; for one that has ended, from its files alone."""
        if attachment.pidfd == GONE:
            return self._of_files(attachment)
        process = attachment.process
        pid = process.id.pid
        root = root_of(pid)
        owner = f"{pid}@{process.id.start_ticks}"
        self.names.enrol(owner, process.uid)
        symbolizer = Symbolizer(
            owner,
            lambda mapping: open_mapped(pid, mapping, owner),
            self._modules,
            debug_in_root=None
            if has_our_root(pid)
            else lambda image, path: debug_file_in_root(image, path, root),
            perf_map=PerfMap(PurePosixPath(f"/tmp/perf-{process.namespace_pid}.map"), process.uid, root),
            names=self.names,
            root_path=root.path,
        )
        symbolizer.update_mappings(attachment.mappings)
        return symbolizer

    def _of_files(self, attachment: Attachment) -> Symbolizer:
        """A symbolizer of its files, as far as these are still the mapped ones."""
        owner = str(attachment.process.id)
        symbolizer = Symbolizer(
            owner,
            lambda mapping: open_unchanged(mapping, owner),
            self._modules,
            names=self.names,
        )
        symbolizer.update_mappings(attachment.mappings)
        return symbolizer

    def close(self) -> None:
        """End the background work."""
        self.names.close()
