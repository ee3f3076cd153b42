# SPDX-License-Identifier: GPL-2.0-or-later
"""malloc and free in a loop, ten Python frames deep: "run N" makes N pairs. Nothing stays live."""

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


print("ready", flush=True)
for line in iter(sys.stdin.readline, ""):
    # With the module and loop().
    descend(7, int(line.split()[1]))
    print("{}", flush=True)
