"""The maps of a module compiled by bcc."""

from __future__ import annotations

import ctypes
from typing import Any


def map_descriptors(library: Any, module: int) -> dict[str, int]:
    """The descriptors of all maps of `module` by name; `library` is bcc.lib.

    bcc's Python interface only knows the maps whose types it can read.
    """
    table_name, table_fd = library.bpf_table_name, library.bpf_table_fd_id
    table_name.restype = ctypes.c_char_p
    for function in (table_name, table_fd):
        function.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    library.bpf_num_tables.argtypes = [ctypes.c_void_p]
    numbers = range(library.bpf_num_tables(module))
    return {table_name(module, number).decode(): table_fd(module, number) for number in numbers}
