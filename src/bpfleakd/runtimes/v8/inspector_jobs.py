"""What helpers do with the inspector of a Node.js process: they talk to it, and answer what it says.

The functions in JOBS run in a process without rights (sandbox/zygote.py). They get two open connections to
the inspector: one for its list of targets, one for the conversation.
https://chromedevtools.github.io/devtools-protocol/v8/HeapProfiler/

`sample_heap` samples allocations for a while, collects, and answers what is still alive, by function. If it
`closes` the inspector, a timer in the process does so, too, should this process end before.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, TypeVar

import msgspec

from bpfleakd.runtimes.v8.websocket import BadConversation, WebSocket, WebSocketConnection
from bpfleakd.sandbox.orders import Answers

JOBS = ("sample_heap", "close_inspector")
SAMPLE_JOB, CLOSE_JOB = (f"{__name__}:{job}" for job in JOBS)

_MESSAGE_MAX_BYTES = 16 << 20
_ALL_MAX_BYTES = 32 << 20
_FUNCTIONS_MAX = 500
_TEXT_MAX = 1_024
_TARGET = re.compile(r"wss?://[^/]{1,255}(/[0-9A-Za-z-]{1,64})")
# Scripts without functions of the program.
_INTERNAL = ("node:", "internal/")

# `close` waits until nobody is connected any more, so it is not called while a request is answered.
_SET_TIMER = """(() => {
  const other = typeof require === 'function' ? require : process.mainModule && process.mainModule.require;
  const inspector = (process.getBuiltinModule || other).call(process.mainModule, 'inspector');
  const timer = setTimeout(() => inspector.close(), %d);
  timer.unref();
  return { inspector, timer };
})()"""
_CLOSE_NOW = """function () {
  clearTimeout(this.timer);
  setTimeout(() => this.inspector.close(), 0);
  return true;
}"""

T = TypeVar("T")
Text = Annotated[str, msgspec.Meta(max_length=_TEXT_MAX)]
Number = Annotated[int, msgspec.Meta(ge=0, le=0x7FFF_FFFF_FFFF_FFFF)]


class Conversation(msgspec.Struct, frozen=True):
    """An order: `host` is the inspector's address, `limit_s` the time limit for everything.

    Allocations are sampled for `sample_s`, one of about `interval_bytes`. `closes`: closes the inspector
    afterwards, by a timer after `timer_s` at the latest.
    """

    host: str
    limit_s: float
    sample_s: float = 0.0
    interval_bytes: int = 0
    closes: bool = False
    timer_s: float = 0.0


class AliveFunctionRow(msgspec.Struct, frozen=True, array_like=True):
    """Live bytes allocated by a function, estimated from `samples`. `line` is 0 if unknown."""

    name: Text
    url: Text
    line: Number
    live_bytes: Number
    samples: Number


class Alive(msgspec.Struct, frozen=True, tag=True):
    """The functions with most bytes, the bytes of all, and how long they were sampled.

    `is_others`: somebody else samples in this process, for longer.
    """

    functions: Annotated[tuple[AliveFunctionRow, ...], msgspec.Meta(max_length=_FUNCTIONS_MAX)]
    live_bytes: Number
    sampled_s: float
    is_others: bool


class Closing(msgspec.Struct, frozen=True, tag=True):
    """The inspector is about to close."""


class _Frame(msgspec.Struct, rename="camel"):
    function_name: str
    url: str
    line_number: int


class _Node(msgspec.Struct, rename="camel"):
    id: int
    call_frame: _Frame
    self_size: float
    children: list[_Node]


class _Sample(msgspec.Struct, rename="camel"):
    node_id: int


class _Profile(msgspec.Struct):
    head: _Node
    samples: list[_Sample] = []


class _Profiled(msgspec.Struct):
    profile: _Profile


class _Target(msgspec.Struct, rename="camel"):
    web_socket_debugger_url: str


class _Refusal(msgspec.Struct):
    message: str = ""


class _Reply(msgspec.Struct):
    id: int | None = None
    result: msgspec.Raw = msgspec.Raw()
    error: _Refusal | None = None


class _Refused(BadConversation):
    """The inspector supports the request and refuses it."""


def prepare() -> None:
    """Import modules that are loaded at first use, while files can still be opened."""
    msgspec.json.decode(b'{"profile":{"head":{"id":1,"callFrame":{"functionName":"","url":"","lineNumber":0},'
                        b'"selfSize":1,"children":[]}}}', type=_Profiled)  # fmt: skip
    msgspec.json.decode(b'{"id":1,"result":{}}', type=_Reply)
    "localhost".encode("idna")


def sample_heap(files: Sequence[int], arguments: object, answer: Answers) -> None:
    """Answer Alive, then Closing if the inspector is to be closed. Raises BadConversation."""
    order = msgspec.convert(arguments, Conversation)
    inspector = _Inspector(files, order)
    closer = inspector.set_timer(order.timer_s) if order.closes else None
    try:
        answer(_sampled(inspector, order))
    finally:
        if closer is not None:
            inspector.close_by(closer)
            answer(Closing())


def close_inspector(files: Sequence[int], arguments: object, answer: Answers) -> None:
    """Answer Closing. Raises BadConversation."""
    order = msgspec.convert(arguments, Conversation)
    inspector = _Inspector(files, order)
    inspector.close_by(inspector.set_timer(order.limit_s))
    answer(Closing())


class _Inspector:
    """Requests to an inspector, one after the other."""

    def __init__(self, files: Sequence[int], order: Conversation) -> None:
        deadline_s = time.monotonic() + order.limit_s
        listing = WebSocketConnection(files[0], deadline_s, _ALL_MAX_BYTES).get(order.host, "/json/list")
        os.close(files[0])
        targets = _decoded(listing, list[_Target])
        found = _TARGET.fullmatch(targets[0].web_socket_debugger_url) if targets else None
        if found is None:
            raise BadConversation("it has no target to inspect")
        self._descriptor = files[1]
        self._connection = WebSocketConnection(self._descriptor, deadline_s, _ALL_MAX_BYTES)
        self._socket = WebSocket(self._connection, order.host, found[1], _MESSAGE_MAX_BYTES)
        self._number = 0

    def ask(self, method: str, **parameters: object) -> msgspec.Raw:
        """The result of a request. Raises BadConversation."""
        self._number += 1
        request = {"id": self._number, "method": method, "params": parameters}
        self._socket.send(json.dumps(request).encode())
        while True:
            reply = _decoded(self._socket.receive(), _Reply)
            if reply.id != self._number:
                continue  # an event
            if reply.error is not None:
                raise _Refused(f"it refuses {method}: {reply.error.message[:200]}")
            return reply.result

    def wait(self, seconds: float) -> None:
        """Let time pass, and process incoming messages. Raises BadConversation."""
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            if not self._connection.is_quiet(until_s):
                self._socket.receive()

    def set_timer(self, seconds: float) -> str:
        """Set a timer in the process that closes its inspector; returns the argument of `close_by`.

        Raises BadConversation.
        """
        expression = _SET_TIMER % int(seconds * 1000)
        result = self.ask("Runtime.evaluate", expression=expression, includeCommandLineAPI=True, silent=True)
        found = _decoded(result, dict[str, Any])
        remote = found.get("result")
        closer = remote.get("objectId") if isinstance(remote, dict) else None
        if "exceptionDetails" in found or not isinstance(closer, str) or len(closer) > _TEXT_MAX:
            raise BadConversation("the inspector could not be closed again")
        return closer

    def close_by(self, closer: str) -> None:
        """Make the process close its inspector now. Raises BadConversation.

        The process closes the connection first; the helper sends nothing until then. Node.js (18, 20) uses
        memory that it has freed, and crashes, if both ends close at the same time (WsHandler in
        src/inspector_socket.cc).
        """
        self.ask("Runtime.callFunctionOn", objectId=closer, functionDeclaration=_CLOSE_NOW, silent=True)
        self._socket.wait_for_close()
        # The process' main thread waits for that.
        os.close(self._descriptor)


def _sampled(inspector: _Inspector, order: Conversation) -> Alive:
    began_s = time.monotonic()
    is_others = True
    try:
        inspector.ask("HeapProfiler.getSamplingProfile")
    except _Refused:
        # Nobody samples.
        is_others = False
        inspector.ask("HeapProfiler.startSampling", samplingInterval=order.interval_bytes)
    inspector.wait(order.sample_s)
    inspector.ask("HeapProfiler.collectGarbage")
    end = "HeapProfiler.getSamplingProfile" if is_others else "HeapProfiler.stopSampling"
    profile = _decoded(inspector.ask(end), _Profiled).profile
    functions, live_bytes = alive_functions(profile)
    return Alive(functions, live_bytes, time.monotonic() - began_s, is_others)


def alive_functions(profile: _Profile) -> tuple[tuple[AliveFunctionRow, ...], int]:
    """The functions with most bytes, and the bytes of all."""
    counts: dict[int, int] = {}
    for sample in profile.samples:
        counts[sample.node_id] = counts.get(sample.node_id, 0) + 1
    sums: dict[tuple[str, str, int], list[float]] = {}
    for node, frame in _blamed(profile.head):
        key = frame.function_name[:_TEXT_MAX], frame.url[:_TEXT_MAX], max(0, frame.line_number + 1)
        found = sums.setdefault(key, [0.0, 0])
        found[0] += min(max(node.self_size, 0.0), 2.0**53)
        found[1] += counts.get(node.id, 0)
    rows = [AliveFunctionRow(*key, int(size), int(count)) for key, (size, count) in sums.items() if size]
    rows.sort(key=lambda row: (-row.live_bytes, row.url, row.line, row.name))
    return tuple(rows[:_FUNCTIONS_MAX]), min(sum(row.live_bytes for row in rows), 2**53)


def _blamed(head: _Node) -> Iterator[tuple[_Node, _Frame]]:
    """Yield each node, with the innermost function of the program that leads to it, or else its own frame."""
    waiting: list[tuple[_Node, _Frame | None]] = [(head, None)]
    while waiting:
        node, outer = waiting.pop()
        frame = node.call_frame
        own = frame if frame.url and not frame.url.startswith(_INTERNAL) else outer
        yield node, own or frame
        waiting += [(child, own) for child in node.children]


def _decoded(data: bytes | msgspec.Raw, type_: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=type_)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise BadConversation("its answer is not as expected") from error
