"""Bounds of containers: a deque's `maxlen`, and the `maxsize` of functools.lru_cache.

A bounded container that fills is no leak, however evenly it does. Layouts, the same from 3.9 to 3.14:
dequeobject of Modules/_collectionsmodule.c; lru_cache_object and lru_list_elem of Modules/_functoolsmodule.c.
The values of such a cache's dict are elements of a ring, in which the cache itself follows the newest one.
"""

from __future__ import annotations

from bpfleakd.process.remote_memory import RemoteMemory
from bpfleakd.runtimes.cpython.containers import Container
from bpfleakd.runtimes.cpython.dict_object import last_values
from bpfleakd.runtimes.cpython.layout import CPythonLayout
from bpfleakd.runtimes.cpython.object_types import TypeNames

_OB_TYPE = 8
_DEQUE_MAXLEN = 64
_ELEMENT_NEXT = 24
_CACHE_DICT, _CACHE_MAXSIZE = 72, 96
# Elements that were used again since the dict got its last value, and so follow it in the ring.
_STEPS_MAX = 2_000
_SIGN = 1 << 63


def bound_of(
    memory: RemoteMemory, layout: CPythonLayout, names: TypeNames, container: Container
) -> int | None:
    """The largest number of values that a container can have; None if it shows no bound."""
    try:
        if container.kind == "deque":
            bound = memory.word(container.address + _DEQUE_MAXLEN)
        elif container.kind == "dict":
            bound = _lru_bound(memory, layout, names, container)
        else:
            return None
    except (OSError, ValueError):
        return None
    return bound if container.size <= bound < _SIGN else None


def _lru_bound(memory: RemoteMemory, layout: CPythonLayout, names: TypeNames, container: Container) -> int:
    """0: the dict is not that of a bounded cache."""
    [element] = last_values(memory, layout, container.table, 1)
    for _ in range(_STEPS_MAX):
        match names.name_of(memory.word(element + _OB_TYPE)):
            case "functools._lru_list_elem":
                element = memory.word(element + _ELEMENT_NEXT)
            case "functools._lru_cache_wrapper":
                is_its_dict = memory.word(element + _CACHE_DICT) == container.address
                return memory.word(element + _CACHE_MAXSIZE) if is_its_dict else 0
            case _:
                return 0
    return 0
