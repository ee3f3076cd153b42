"""Fills Python's object heap when it is told, and says how many arenas it has.

    python3 arenas.py

Prints its pid and, after each line that it reads, the arenas there are, by sys._debugmallocstats.
"""

import os
import re
import sys
import tempfile

kept = []


def arenas():
    """What Python itself says that it has."""
    with tempfile.TemporaryFile() as file:
        saved = os.dup(2)
        os.dup2(file.fileno(), 2)
        sys._debugmallocstats()
        os.dup2(saved, 2)
        os.close(saved)
        file.seek(0)
        return int(re.search(rb"arenas allocated current\s*=\s*([\d,]+)", file.read())[1].replace(b",", b""))


def remember(count):
    for number in range(count):
        kept.append({"number": number, "text": str(number) * 3})


def forget(count):
    del kept[-count:]


def main():
    print(os.getpid(), flush=True)
    for line in sys.stdin:
        if line.strip():
            word, count = line.split()
            globals()[word](int(count))
        print(arenas(), flush=True)


main()
