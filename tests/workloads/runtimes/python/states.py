"""Allocates in a second thread state of its thread, which a program that embeds Python may switch to.

The argument is a library with run_in() (states.c). It prints its pid. After a line of input it allocates
outside and in the other state, prints "end" and waits there, so that all its code is alive. After another
line it returns, allocates outside, and does the same there.
"""

import ctypes
import os
import sys

COUNT = 40

kept = []
python = ctypes.pythonapi
python.PyInterpreterState_Get.restype = ctypes.c_void_p
python.PyThreadState_New.restype = ctypes.c_void_p
python.PyThreadState_New.argtypes = [ctypes.c_void_p]
run_in = ctypes.PyDLL(sys.argv[1]).run_in
run_in.argtypes = [ctypes.c_void_p, ctypes.c_char_p]


def keep(size_bytes):
    kept.append(bytearray(size_bytes))


def outside(size_bytes):
    for _ in range(COUNT):
        keep(size_bytes)


def inside(size_bytes):
    for _ in range(COUNT):
        keep(size_bytes)


def wait():
    print("end", flush=True)
    sys.stdin.readline()


def enter(state, code):
    assert run_in(state, code) == 0


def main():
    state = python.PyThreadState_New(python.PyInterpreterState_Get())
    print(os.getpid(), flush=True)
    sys.stdin.readline()
    outside(20_001)
    enter(state, b"inside(20_003); wait()")
    outside(20_005)
    wait()


main()
