"""The daemon's side of helpers: orders jobs, and waits for their answers within limits.

Rules:
- A job gets open descriptors and plain values, never paths.
- A separate process does each job (zygote.py). Its answer only concerns the files that it received, and is
  stored for these only.
- The tracing thread calls nothing here, since a job waits for its helper.
- The zygote starts when jobs are expected, and ends after a while without one: an idle daemon has no helper.
- A job that nobody waits for is done at idle priority: at the usual one, the slowest answers of a busy server
  show it. A helper has no right to return from that. On a machine without an idle core, the job is soon given
  up and ordered again at usual priority, as are those of the next seconds.
- For such a job the zygote, too, starts at idle priority: that takes half a second of a core. It returns when
  it takes long, or when another job waits for it.
- A continuing job (`follow`) ends when its stream is closed, or with the daemon, however that ends.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar
from weakref import WeakSet

from msgspec.structs import replace

from bpfleakd.sandbox.answer_stream import AnswerStream
from bpfleakd.sandbox.channel import ChannelError, HelperFailed, JobFailed, receive, send
from bpfleakd.sandbox.orders import Failure, Order, Spent
from bpfleakd.threads import begin_thread, lower, may_be_idle, restore, usual_priority

T = TypeVar("T")

_START_TIMEOUT_S = 30.0
# How long the zygote, which takes 27 MB, stays without orders. In the first minutes of a process, new call
# sites need names again and again.
_IDLE_S = 60.0
# How long it may start at idle priority.
_IDLE_START_S = 3.0
# How long somebody who waits may need further jobs, and how long a machine may have no idle core.
_URGENT_S, _BUSY_S = 5.0, 10.0
_MEMORY_BYTES_MAX = 2 << 30
# A malicious file may make a helper answer anything: longer answers are refused.
ANSWER_BYTES_MAX = 4 << 20


class Helpers:
    """Runs jobs of some modules; thread-safe."""

    def __init__(self, modules: Sequence[str]) -> None:
        self._modules = tuple(modules)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._used_s = 0.0
        # The zygote that starts at idle priority.
        self._idle_start: int | None = None
        # Until then, jobs begin at usual priority.
        self._usual_until_s = -math.inf
        # Jobs in progress: on a busy machine, an order waits for longer than an idle zygote lives.
        self._jobs = 0
        # Continuing jobs: they share with the zygote, and further jobs share it too.
        self._streams: WeakSet[AnswerStream[Any]] = WeakSet()
        self._ended = threading.Event()

    def answers(
        self,
        job: str,
        arguments: object,
        files: Sequence[int],
        answer_type: type[T],
        *,
        limit_s: float,
        answer_limit_s: float | None = None,
        answers_max: int = 1,
        bytes_max: int = ANSWER_BYTES_MAX,
        cpu_s: int | None = None,
        idle_s: float = 0.0,
        on_spent: Callable[[float], None] | None = None,
    ) -> Iterator[T]:
        """Order a job and yield its answers, until it ends.

        It may take `limit_s` by the clock, `cpu_s` of a processor (as much, otherwise), and each answer no
        longer than `answer_limit_s`. Raises HelperFailed, also if there are more than `answers_max`, or one
        of more than `bytes_max`. `on_spent` receives the CPU time in seconds that the helper reports. This
        report also shows that the answers are complete; a job that used up its time fails, too.
        Unless somebody waits (`prepare`), the job is first tried at idle priority, for `idle_s`.
        """
        cpu_s = int(limit_s) + 1 if cpu_s is None else cpu_s
        order = Order(job, _MEMORY_BYTES_MAX, cpu_s, limit_s, is_metered=on_spent is not None)
        ordered = partial(
            self._answers,
            arguments=arguments,
            files=files,
            answer_type=answer_type,
            answer_limit_s=answer_limit_s,
            answers_max=answers_max,
            bytes_max=bytes_max,
            on_spent=on_spent,
        )
        if idle_s and may_be_idle() and time.monotonic() > self._usual_until_s:
            # Only the report of its time shows whether a job ended by itself.
            attempt = replace(order, real_s=idle_s, is_metered=True, is_idle=True)
            try:
                complete = list(ordered(attempt))
            except JobFailed:
                raise
            except HelperFailed:
                self._usual_until_s = time.monotonic() + _BUSY_S
            else:
                yield from complete
                return
        yield from ordered(order)

    def _answers(
        self,
        order: Order,
        *,
        arguments: object,
        files: Sequence[int],
        answer_type: type[T],
        answer_limit_s: float | None,
        answers_max: int,
        bytes_max: int,
        on_spent: Callable[[float], None] | None,
    ) -> Iterator[T]:
        if not order.is_idle:
            self._hurry_start()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with ours, self._at_work():
            try:
                with theirs:
                    self._order(order, [theirs.fileno(), *files])
                deadline_s = time.monotonic() + order.real_s
                ours.settimeout(order.real_s)
                send(ours, arguments)
                ours.settimeout(None)
                kind = answer_type | Failure | Spent if order.is_metered else answer_type | Failure
                for _number in range(answers_max + 1):
                    if _is_over(ours, deadline_s):
                        if order.is_metered:
                            raise HelperFailed("it ended before it was done")
                        return
                    until_s = deadline_s
                    if answer_limit_s is not None:
                        until_s = min(until_s, time.monotonic() + answer_limit_s)
                    answer = receive(ours, kind, deadline_s=until_s, bytes_max=bytes_max)  # type: ignore[arg-type]
                    if isinstance(answer, Failure):
                        raise JobFailed(answer.reason)
                    if order.is_metered and isinstance(answer, Spent):
                        if on_spent is not None:
                            on_spent(answer.cpu_s)
                        return
                    yield answer
                raise HelperFailed(f"more answers than {answers_max}")
            except ChannelError as error:
                raise HelperFailed(str(error)) from error

    @contextlib.contextmanager
    def _at_work(self) -> Iterator[None]:
        """The zygote stays while a job is done."""
        with self._lock:
            self._jobs += 1
        try:
            yield
        finally:
            with self._lock:
                self._jobs -= 1
                self._used_s = time.monotonic()

    def answer(
        self,
        job: str,
        arguments: object,
        files: Sequence[int],
        answer_type: type[T],
        *,
        limit_s: float,
        bytes_max: int = ANSWER_BYTES_MAX,
    ) -> T:
        """Order a job that has one answer. Raises HelperFailed."""
        for answer in self.answers(job, arguments, files, answer_type, limit_s=limit_s, bytes_max=bytes_max):
            return answer
        raise HelperFailed("it has ended without an answer")

    def follow(
        self, job: str, arguments: object, files: Sequence[int], answer_type: type[T], *, cpu_s: int
    ) -> AnswerStream[T]:
        """Order a job that continues until its stream is closed, or its CPU time is used up.

        Raises HelperFailed.
        """
        self._hurry_start()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with theirs:
                order = Order(job, _MEMORY_BYTES_MAX, cpu_s, real_s=0.0)
                self._order(order, [theirs.fileno(), *files])
            ours.settimeout(_START_TIMEOUT_S)
            send(ours, arguments)
        except ChannelError as error:
            ours.close()
            raise HelperFailed(str(error)) from error
        stream = AnswerStream(ours, answer_type, ANSWER_BYTES_MAX)
        self._streams.add(stream)
        return stream

    def prepare(self) -> None:
        """Start the zygote, which takes a moment, before a job is urgent. Raises HelperFailed."""
        self._usual_until_s = max(self._usual_until_s, time.monotonic() + _URGENT_S)
        self._hurry_start()
        with self._lock:
            self._used_s = time.monotonic()
            try:
                if self._control is None:
                    self._start(idle_s=0.0)
            except ChannelError as error:
                raise HelperFailed(str(error)) from error

    def _hurry_start(self) -> None:
        """Return a zygote that starts at idle priority to its usual one; who has the lock waits for it."""
        pid = self._idle_start
        if pid is not None:
            restore(pid)

    def prepare_soon(self) -> None:
        """The same without waiting; a failure shows when a job is ordered."""
        begin_thread("helpers-start", self._prepare_quietly)

    def _prepare_quietly(self) -> None:
        with contextlib.suppress(HelperFailed, OSError):
            self.prepare()

    def close(self) -> None:
        """End the zygote; it starts again on demand."""
        with self._lock:
            self._end()

    def _order(self, order: Order, descriptors: Sequence[int]) -> None:
        with self._lock:
            self._used_s = time.monotonic()
            for attempt in range(2):
                if self._control is None:
                    self._start(idle_s=_IDLE_START_S if order.is_idle else 0.0)
                assert self._control is not None
                try:
                    send(self._control, order, descriptors)
                except ChannelError:
                    self._end()
                    if attempt:
                        raise
                else:
                    return

    def _start(self, *, idle_s: float) -> None:
        """Start the zygote, at idle priority for `idle_s` at most. Raises ChannelError, OSError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            command = [sys.executable, "-P", "-m", "bpfleakd.sandbox.zygote", str(theirs.fileno())]
            with usual_priority():
                # Threads of numpy would be missing in the children.
                self._process = subprocess.Popen(
                    [*command, *self._modules],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    # Ctrl-C in a terminal is for the daemon, which ends its helpers in order.
                    process_group=0,
                    env={
                        **os.environ,
                        "OPENBLAS_NUM_THREADS": "1",
                        "OMP_NUM_THREADS": "1",
                        "DEBUGINFOD_URLS": "",
                    },
                )
        if idle_s and may_be_idle():
            self._idle_start = self._process.pid
            lower(self._idle_start)
            started = select.poll()
            started.register(ours, select.POLLIN)
            if not started.poll(idle_s * 1000):
                restore(self._idle_start)
            self._idle_start = None
        try:
            receive(ours, str, deadline_s=time.monotonic() + _START_TIMEOUT_S)
        except ChannelError:
            ours.close()
            self._end()
            raise
        self._control = ours
        self._ended = threading.Event()
        begin_thread("helpers", self._end_when_idle, self._ended)

    def _end_when_idle(self, ended: threading.Event) -> None:
        while (left_s := self._idle_left_s()) > 0:
            if ended.wait(left_s):
                return
        with self._lock:
            if ended is self._ended:
                self._end()

    def _idle_left_s(self) -> float:
        """How long the zygote will stay without orders."""
        if self._jobs or any(stream.is_open for stream in list(self._streams)):
            return _IDLE_S
        return self._used_s + _IDLE_S - time.monotonic()

    def _end(self) -> None:
        self._ended.set()
        control, self._control = self._control, None
        if control is not None:
            control.close()
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()


def _is_over(channel: socket.socket, deadline_s: float) -> bool:
    """Whether the other end has closed, after waiting for that or for an answer."""
    channel.settimeout(max(0.001, deadline_s - time.monotonic()))
    try:
        return not channel.recv(1, socket.MSG_PEEK)
    except TimeoutError:
        raise ChannelError("no answer in time") from None
    except OSError as error:
        raise ChannelError(str(error)) from error
    finally:
        with contextlib.suppress(OSError):
            channel.settimeout(None)
