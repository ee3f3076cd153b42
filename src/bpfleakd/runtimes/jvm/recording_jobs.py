"""What helpers do with recordings of JVMs: who allocated the objects that are alive, and what holds them.

The functions in JOBS run in a process without rights (sandbox/zygote.py). They get the open file.

`old_objects` reads the samples of jdk.OldObjectSample: objects that were alive at the end of the recording,
each with the stack that allocated it and a path of references from a root.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from bpfleakd.runtimes.jvm.heap_types import java_type_name
from bpfleakd.runtimes.jvm.java_names import class_name, java_method_name
from bpfleakd.runtimes.jvm.recording import Resolver, read_events
from bpfleakd.sandbox.orders import Answers

JOBS = ("old_objects",)
(OLD_OBJECTS_JOB,) = (f"{__name__}:{job}" for job in JOBS)

_EVENT = "jdk.OldObjectSample"
_READ_BYTES = 1 << 20
_ROWS_MAX = 500
_FRAMES_MAX = 64
_PATH_MAX = 64
_TEXT_MAX = 1_024
_LINE_MAX = 1 << 20
_CLASS_NAME = "Class Name: "
# The class with the static fields.
_CLASS = "java.lang.Class"

Number = Annotated[int, msgspec.Meta(ge=0, le=0x7FFF_FFFF_FFFF_FFFF)]
Text = Annotated[str, msgspec.Meta(max_length=_TEXT_MAX)]


class Line(msgspec.Struct, frozen=True, array_like=True, order=True):
    """A frame: the method with its class, and the line; 0 if it is unknown."""

    method: Text
    line: Number


class OldObject(msgspec.Struct, frozen=True, array_like=True):
    """Samples of one type and stack (innermost first). `held_by` leads from a root to one of the objects."""

    type: Text
    samples: Number
    stack: Annotated[tuple[Line, ...], msgspec.Meta(max_length=_FRAMES_MAX)]
    held_by: Annotated[tuple[Text, ...], msgspec.Meta(max_length=_PATH_MAX)]


class OldObjects(msgspec.Struct, frozen=True, tag=True):
    """The entries with most samples, and the number of all samples."""

    rows: Annotated[tuple[OldObject, ...], msgspec.Meta(max_length=_ROWS_MAX)]
    samples: Number


def prepare() -> None:
    """Do nothing: nothing is imported later."""


def old_objects(files: Sequence[int], _arguments: object, answer: Answers) -> None:
    """Answer OldObjects. Raises BadRecording."""
    parts = []
    while part := os.read(files[0], _READ_BYTES):
        parts.append(part)
    answer(found_objects(b"".join(parts)))


def found_objects(data: bytes) -> OldObjects:
    """The content of a recording. Raises BadRecording."""
    everything: Counter[tuple[str, tuple[Line, ...]]] = Counter()
    alive: Counter[tuple[str, tuple[Line, ...]]] = Counter()
    paths: dict[tuple[str, tuple[Line, ...]], tuple[str, ...]] = {}
    for event, resolver in read_events(data, (_EVENT,)):
        held_by = _path(event.get("object"), resolver) or _root(event.get("root"), resolver)
        key = _type_of(event.get("object"), resolver), _stack(event.get("stackTrace"), resolver)
        everything[key] += 1
        if held_by:
            alive[key] += 1
            paths.setdefault(key, held_by)
    # Nothing refers to the others: garbage that was not collected yet. Unless the search was aborted.
    counts = alive or everything
    rows = [OldObject(key[0], count, key[1], paths.get(key, ())) for key, count in counts.items()]
    rows.sort(key=lambda row: (-row.samples, row.type, row.stack))
    return OldObjects(tuple(rows[:_ROWS_MAX]), sum(counts.values()))


def _stack(trace: Any, resolver: Resolver) -> tuple[Line, ...]:
    frames = resolver.field(trace, "frames")
    found = []
    for frame in frames[:_FRAMES_MAX] if isinstance(frames, list) else []:
        name = java_method_name(
            resolver.text(frame, "method", "type", "name"), resolver.text(frame, "method", "name")
        )
        line = resolver.field(frame, "lineNumber")
        known = isinstance(line, int) and 0 < line < _LINE_MAX
        found.append(Line(name[:_TEXT_MAX], line if known else 0))
    return tuple(found)


def _path(place: Any, resolver: Resolver) -> tuple[str, ...]:
    """The fields and arrays that lead to an object, from the root inwards; () without any.

    A static field is a root, though it is in an object that the class loader holds.
    """
    path: list[str] = []
    referrer = resolver.field(place, "referrer")
    while referrer is not None and len(path) < _PATH_MAX:
        holder = resolver.field(referrer, "object")
        if holder is None:
            break
        kind = _type_of(holder, resolver)
        name = resolver.text(referrer, "field", "name")
        said = resolver.text(holder, "description")
        is_static = kind == _CLASS and said.startswith(_CLASS_NAME)
        if is_static:
            kind = class_name(said.removeprefix(_CLASS_NAME))
        path.append((f"{kind}.{name}" if name else kind)[:_TEXT_MAX])
        if is_static:
            break
        referrer = resolver.field(holder, "referrer")
    return tuple(reversed(path))


def _root(root: Any, resolver: Resolver) -> tuple[str, ...]:
    """The root that refers to an object without references from other objects."""
    words = [resolver.text(root, "system"), resolver.text(root, "type"), resolver.text(root, "description")]
    said = ", ".join(word for word in words if word)
    return (said[:_TEXT_MAX],) if said else ()


def _type_of(place: Any, resolver: Resolver) -> str:
    return java_type_name(resolver.text(place, "type", "name"))[:_TEXT_MAX] or "?"
