"""bpf(2) and perf_event_open(2), by ctypes.

A process that opens pinned objects through this module takes 11 MB; one that imports bcc takes 125 MB.
Objects are file descriptors (int); the caller closes them. Every failure is an OSError with the errno of the
system call; callers that know the purpose translate it.

Structure layouts are those of union bpf_attr in include/uapi/linux/bpf.h and struct perf_event_attr. Callers
import this package, which hands on the names of its modules.
"""

from bpfleakd.kernel.bpf.command import (
    object_get,
    object_pin,
    u32,
)
from bpfleakd.kernel.bpf.maps import (
    MAP_FLAG_MMAPABLE,
    MAP_FLAG_NO_PREALLOC,
    MAP_FLAG_PRESERVE_ELEMS,
    MapInfo,
    MapType,
    is_map,
    map_batches,
    map_create,
    map_delete,
    map_delete_many,
    map_get,
    map_info,
    map_keys,
    map_lookup,
    map_lookup_many,
    map_update,
)
from bpfleakd.kernel.bpf.perf_events import (
    has_tracepoint,
    open_recorded_tracepoint_event,
    open_shared_event,
    open_tracepoint_event,
    open_uprobe_event,
)
from bpfleakd.kernel.bpf.programs import (
    AttachType,
    ProgramType,
    link_kprobe_multi,
    link_perf_event,
    link_uprobe_multi,
    program_load,
    program_machine_code,
    program_misses,
    raw_tracepoint_open,
)
