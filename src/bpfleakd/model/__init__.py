"""Values that the kernel side, the tables, the analysis and the exporters exchange.

Everything here is a frozen value without behaviour beyond its own fields. Sizes are bytes, times are seconds
(`_s`) or CLOCK_MONOTONIC nanoseconds (`_ns`), addresses are virtual addresses in the target.

`report.LeakReport` and the values in it are the contract of `bpfleakctl top --json` and of the HTTP API: its
field names are the JSON names (docs/json.md). A module a subject:

process     a process, how it is traced, its totals
code        a package: mappings, allocator functions, methods, stacks as recorded and as named
site        call sites and their counters
limit       limits of the memory of a process
container   what a control group is charged for
oom         what the kernel said when it killed a process
resources   file descriptors and threads of a process
managed     the heap of a runtime, and its types
goroutines  goroutines, by where they wait and were started
verdict     verdicts on a call site and on a process
report      outstanding memory, by call site
groups      the same by function, module or thread
stored_report reports that are stored
blocks      outstanding blocks, one by one
scan        which blocks are lost
difference  two states of a process compared
history     the data behind verdicts, saved
address_space what the memory of a process consists of
profile     input of profile viewers
process_events processes come and go
selection   which processes are asked for, by name, unit or container
supervision what bpfleakd does with each process of this host
watching    processes whose memory is watched
daemon      figures on the daemon itself
metrics     input of the metrics
check       what this machine supports
"""
