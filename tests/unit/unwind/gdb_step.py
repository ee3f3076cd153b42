"""Runs in gdb's Python: steps through a program from main and prints its state at every step."""

import json
import os

import gdb

STACK_BYTES = 12 << 10
BELOW_RSP_BYTES = 256

gdb.execute("set backtrace past-main on")
gdb.execute("set backtrace past-entry on")
gdb.execute("set step-mode on")


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


def memory_around(address, maps):
    """The memory above an address, and the thread's own stack if that is another one (signal handlers)."""
    inferior, memory = gdb.selected_inferior(), {}
    for line in maps.splitlines():
        start, end = (int(number, 16) for number in line.split()[0].split("-"))
        if "[stack]" in line:
            memory[end - STACK_BYTES] = end
        elif start <= address < end:
            memory[address] = min(end, address + STACK_BYTES)
    return {start: bytes(inferior.read_memory(start, end - start)).hex() for start, end in memory.items()}


gdb.execute("break main", to_string=True)
gdb.execute("run", to_string=True)
pid = gdb.selected_inferior().pid
maps = ""
for _ in range(int(os.environ["STEP_COUNT"])):
    registers = {name: int(gdb.parse_and_eval("$" + name)) & (1 << 64) - 1 for name in ("rip", "rsp", "rbp")}
    with open(f"/proc/{pid}/maps") as file:
        maps = file.read()
    memory = memory_around(registers["rsp"] - BELOW_RSP_BYTES, maps)
    print("JSON " + json.dumps({**registers, "pcs": program_counters(), "memory": memory}))
    name = gdb.newest_frame().name() or ""
    # After it comes start code without call frame information, where gdb guesses from the instructions.
    if name in ("exit", "__GI_exit"):
        break
    skipped = os.environ["SKIP_FUNCTIONS"]
    gdb.execute("finish" if skipped and skipped in name else "stepi", to_string=True)
print("JSON " + json.dumps({"maps": maps}))
gdb.execute("kill")
