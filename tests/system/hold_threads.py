"""Hold all threads of a process but the first, as if each of them hung: `hold_threads.py PID`, as root.

Prints "held" when they stand still, and holds them until the process ends (ptrace(2), PTRACE_SEIZE).
"""

import ctypes
import os
import sys

_PTRACE_SEIZE, _PTRACE_INTERRUPT = 0x4206, 0x4207
_WALL = 0x40000000

ptrace = ctypes.CDLL(None, use_errno=True).ptrace
ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]

pid = int(sys.argv[1])
for tid in map(int, os.listdir(f"/proc/{pid}/task")):
    if tid != pid:
        for request in (_PTRACE_SEIZE, _PTRACE_INTERRUPT):
            if ptrace(request, tid, None, None) != 0:
                sys.exit(f"thread {tid}: {os.strerror(ctypes.get_errno())}")
        os.waitpid(tid, _WALL)
print("held", flush=True)
try:
    while True:
        os.waitpid(-1, _WALL)
except ChildProcessError:
    pass
