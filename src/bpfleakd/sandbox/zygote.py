"""The process that helpers are forked from: it has imported all parsers, and has given up all privileges.

    python -P -m bpfleakd.sandbox.zygote CONTROL JOBS...

CONTROL is the descriptor of a unix socket, JOBS are modules with `prepare()` and with the functions that
their `JOBS` name: `job(files: list[int], arguments, answer: Answers)`. Each order names one, with limits, and
brings a socket for the answers and the open files. It is done in a process that ends then: what one file
could have made it believe never meets another.

Rules:
- Nothing that a traced process controls is read before the process is locked down.
- The zygote itself reads nothing but orders of the daemon, and ends with it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from bpfleakd.sandbox.channel import ChannelError, receive, receive_with_descriptors, send
from bpfleakd.sandbox.lockdown import LONG_LIVED, WORKER, limit, lock_down
from bpfleakd.sandbox.orders import Answers, Failure, Order, Spent
from bpfleakd.threads import is_idle, lower, restore

_DESCRIPTORS_MAX = 32


def _main(control_fd: int, modules: list[str]) -> None:
    # Memory shared with the children stays shared if no collector touches it.
    gc.disable()
    jobs: dict[str, Callable[..., None]] = {}
    for name in modules:
        module = importlib.import_module(name)
        module.prepare()
        jobs |= {f"{name}:{job}": getattr(module, job) for job in module.JOBS}
    gc.freeze()
    gc.enable()
    control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=control_fd)
    if is_idle():
        # Its children would stay so: they have no right to return.
        restore(0)
    lock_down(LONG_LIVED)
    # A daemon that was killed meanwhile does not listen.
    with contextlib.suppress(ChannelError):
        send(control, "ready")
        _serve(control, jobs)


def _serve(control: socket.socket, jobs: dict[str, Callable[..., None]]) -> None:
    while True:
        try:
            order, descriptors = receive_with_descriptors(control, Order)
        except ChannelError:
            return
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if os.fork() == 0:
            control.close()
            _work(jobs[order.job], order, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _work(job: Callable[..., None], order: Order, descriptors: list[int]) -> None:
    """Run one job in this process, then end the process."""
    try:
        answers = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=descriptors[0])
        limit(memory_bytes=order.memory_bytes, cpu_s=order.cpu_s, descriptors=_DESCRIPTORS_MAX)
        signal.setitimer(signal.ITIMER_REAL, order.real_s)
        if order.is_idle:
            lower(0)
        lock_down(WORKER)
        arguments = receive(answers, Any)
        try:
            job(descriptors[1:], arguments, Answers(answers))
        except Exception as error:
            send(answers, Failure(f"{type(error).__name__}: {error}"[:1000]))
        else:
            if order.is_metered:
                send(answers, Spent(time.process_time()))
    finally:
        os._exit(0)


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2:])
