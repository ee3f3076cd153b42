"""A Python program that leaks in a C library, deep down: "run N" goes N times from Python to C and back."""

import ctypes
import os
import sys

sessions = ctypes.CDLL(os.path.join(sys.argv[1], "libsessions.so"))
Function = ctypes.CFUNCTYPE(None, ctypes.c_long)


@Function
def descend(levels):
    if levels > 0:
        sessions.sessions_call(descend, ctypes.c_long(levels - 1))
        return
    for i in range(23):
        sessions.session_keep(ctypes.c_long(601 + i))
    for _ in range(101):
        sessions.session_turn_over(ctypes.c_long(53))


sys.exit(sessions.sessions_serve(descend))
