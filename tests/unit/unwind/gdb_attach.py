"""Run by gdb, in its own Python: prints the registers and the stack of every thread as JSON lines."""

import json

import gdb

gdb.execute("set backtrace past-main on")
gdb.execute("set backtrace past-entry on")


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


for thread in sorted(gdb.selected_inferior().threads(), key=lambda thread: thread.num):
    thread.switch()
    registers = {name: int(gdb.parse_and_eval("$" + name)) & (1 << 64) - 1 for name in ("rip", "rsp", "rbp")}
    print("JSON " + json.dumps({**registers, "pcs": program_counters()}))
