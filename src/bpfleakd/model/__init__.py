"""The nouns: what is passed between the kernel side, the tables, the analysis and the exporters.

Everything here is a frozen value without behaviour beyond its own fields. Sizes are bytes, times are
seconds (`_s`) or CLOCK_MONOTONIC nanoseconds (`_ns`), addresses are virtual addresses in the target.

`report.LeakReport` and what hangs on it is the contract of `bpfleakctl top --json` and of the HTTP API: its
field names are the JSON names (docs/json.md). A module a subject:

process     a process, how it is traced, its totals
probe       allocator functions under probes
mapping     lines of /proc/PID/maps
stack       stacks, as recorded and as named
site        call sites and their counters
limit       limits of the memory of a process
verdict     what is said of a call site and of a process
report      what is outstanding, by call site
groups      the same by function, module or thread
stored_report reports that are stored
blocks      outstanding blocks, one by one
scan        which blocks are lost
difference  two states of a process compared
history     what verdicts are made of, saved
address_space what the memory of a process is made of
profile     what profile viewers are given
process_events processes come and go
supervision what is done with each process of this host
watching    processes whose memory is watched
daemon      what the daemon says of itself
metrics     what the metrics are made of
check       what this machine can do
"""
