"""Run by gdb, in its own Python: lets a program run from sample to sample and prints the stack at each.

A sample is a trap in take_sample (tests/workloads/stacks/sample.h). SAMPLES says how many are wanted;
SAMPLER_GAP sets the variable of the preloaded sampler. The output is a line "attached", then for each sample
"SAMPLE" and a JSON list of program counters, innermost first; then the program goes on without gdb.
"""

import json
import os

import gdb

for setting in ("backtrace past-main on", "backtrace past-entry on", "print thread-events off"):
    gdb.execute("set " + setting)
gdb.execute("handle all nostop noprint pass", to_string=True)
gdb.execute("handle SIGTRAP stop print nopass", to_string=True)


def set_gap(gap):
    gdb.execute(f"set var *(int *)&sampler_gap = {gap}")


def program_counters():
    """The program counters of the frames that are on the stack, innermost first.

    gdb makes up frames besides, from debug information: for inlined functions and for functions that
    ended in a tail call.
    """
    counters, frame = [], gdb.newest_frame()
    while frame is not None:
        if frame.type() not in (gdb.INLINE_FRAME, gdb.TAILCALL_FRAME):
            counters.append(frame.pc())
        frame = frame.older()
    return counters


gap = int(os.environ.get("SAMPLER_GAP", "0"))
if gap:
    set_gap(gap)
print("attached", flush=True)
for _ in range(int(os.environ["SAMPLES"])):
    gdb.execute("continue", to_string=True)
    if not gdb.selected_thread():
        raise gdb.GdbError("the program has ended")
    if gdb.newest_frame().name() != "take_sample":
        raise gdb.GdbError(f"stopped in {gdb.newest_frame().name()}, which is no sample")
    print("SAMPLE " + json.dumps(program_counters()), flush=True)
if gap:
    set_gap(0)
gdb.execute("detach", to_string=True)
