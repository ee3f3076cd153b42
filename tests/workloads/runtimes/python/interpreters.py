"""Allocates in an interpreter inside the interpreter, and before and after that.

It prints its pid. After a line of input it allocates outside and inside, prints "end" and waits inside, so
that all its code is alive. After another line it returns, allocates outside, and does the same there.
"""

import os
import sys

try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters

kept = []

INSIDE = """
import sys
kept = []
def inside(size_bytes):
    kept.append(bytearray(size_bytes))
def calls_inside(count):
    for _ in range(count):
        inside({size_bytes})
calls_inside({count})
print("end", flush=True)
sys.stdin.readline()
"""


def keep(size_bytes):
    kept.append(bytearray(size_bytes))


def outside(size_bytes, count):
    for _ in range(count):
        keep(size_bytes)


def enter(interpreter, size_bytes, count):
    interpreters.run_string(interpreter, INSIDE.format(size_bytes=size_bytes, count=count))


def main():
    count = int(sys.argv[1])
    interpreter = interpreters.create()
    print(os.getpid(), flush=True)
    sys.stdin.readline()
    outside(20_001, count)
    enter(interpreter, 20_003, count)
    outside(20_005, count)
    print("end", flush=True)
    sys.stdin.readline()


main()
