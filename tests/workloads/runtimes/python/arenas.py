"""Fills Python's object heap on request, and prints how many arenas it has."""

import os
import re
import sys
import tempfile

kept = []


def arenas():
    """Python's own count of its arenas."""
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
