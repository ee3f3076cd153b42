# SPDX-License-Identifier: GPL-2.0-or-later
"""malloc and free in a loop, ten Python frames deep: "run N" makes N pairs. Nothing stays live.

The frames are of ten functions, or with the argument "recursion" of three.
"""

import sys


def loop(count):
    for _ in range(count):
        # The object itself is too small for malloc, its memory is not.
        bytearray(1000)


def descend(further, count):
    if further > 0:
        descend(further - 1, count)
    else:
        loop(count)


def first(further, count):
    second(count)


def second(count):
    third(count)


def third(count):
    fourth(count)


def fourth(count):
    fifth(count)


def fifth(count):
    sixth(count)


def sixth(count):
    seventh(count)


def seventh(count):
    eighth(count)


def eighth(count):
    loop(count)


way = descend if sys.argv[1:] == ["recursion"] else first
print("ready", flush=True)
for line in iter(sys.stdin.readline, ""):
    # With the module and loop().
    way(7, int(line.split()[1]))
    print("{}", flush=True)
