"""Programs to trace, as far as a monitor without a kernel does."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..elf.building import compiled


@contextmanager
def started(*command: str | Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a program; yields when it has printed a line."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout
            child.stdout.readline()
            yield child
        finally:
            child.kill()


@contextmanager
def running(*command: str | Path) -> Iterator[int]:
    """Start a program, by default a shell that waits; yields its pid when it has printed a line."""
    with started(*(command or ("sh", "-c", "echo; read nothing"))) as child:
        yield child.pid


def without_main_thread(directory: Path) -> Path:
    """A program whose main thread ends before the others; its first line comes after that."""
    source = """
    #include <pthread.h>
    #include <stdio.h>
    #include <unistd.h>
    static pthread_t first;
    static void *work(void *nothing)
    {
        pthread_join(first, 0);
        puts("ready");
        fflush(stdout);
        pause();
        return nothing;
    }
    int main(void)
    {
        pthread_t thread;
        first = pthread_self();
        pthread_create(&thread, 0, work, 0);
        pthread_exit(0);
    }
    """
    return compiled(directory, source, "-pthread", name="headless")
