"""Recordings of the Flight Recorder, written here by the format's description, and broken ones."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest

from bpfleakd.runtimes.jvm.recording import BadRecording, read_events
from bpfleakd.runtimes.jvm.recording_jobs import Line, found_objects

# Types as in HotSpot, without unused ones: number, name, fields (name, type, list, pooled).
TYPES: dict[int, tuple[str, list[tuple[str, int, bool, bool]]]] = {
    4: ("boolean", []),
    5: ("int", []),
    6: ("long", []),
    7: ("java.lang.String", []),
    8: ("double", []),
    20: ("java.lang.Class", [("name", 21, False, True)]),
    21: ("jdk.types.Symbol", [("string", 7, False, False)]),
    22: ("jdk.types.Method", [("type", 20, False, True), ("name", 21, False, True)]),
    23: ("jdk.types.StackFrame", [("method", 22, False, True), ("lineNumber", 5, False, False)]),
    24: ("jdk.types.StackTrace", [("truncated", 4, False, False), ("frames", 23, True, False)]),
    25: (
        "jdk.types.OldObject",
        [
            ("address", 6, False, False),
            ("type", 20, False, True),
            ("description", 7, False, False),
            ("referrer", 26, False, True),
        ],
    ),
    26: ("jdk.types.Reference", [("field", 27, False, True), ("object", 25, False, True)]),
    27: ("jdk.types.OldObjectField", [("name", 7, False, False)]),
    28: (
        "jdk.types.OldObjectGcRoot",
        [("description", 7, False, False), ("system", 7, False, False), ("type", 7, False, False)],
    ),
    100: (
        "jdk.OldObjectSample",
        [
            ("startTime", 6, False, False),
            ("weight", 8, False, False),
            ("stackTrace", 24, False, True),
            ("object", 25, False, True),
            ("root", 28, False, True),
        ],
    ),
    101: ("jdk.Other", [("startTime", 6, False, False)]),
}


def number(value: int) -> bytes:
    found = bytearray()
    for _ in range(8):
        if value < 0x80:
            return bytes([*found, value])
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def text(value: str | None) -> bytes:
    if value is None:
        return b"\0"
    data = value.encode()
    return b"\3" + number(len(data)) + data if data else b"\1"


def event(kind: int, payload: bytes) -> bytes:
    body = number(kind) + payload
    for width in range(1, 9):
        size = number(len(body) + width)
        if len(size) == width:
            return size + body
    raise AssertionError


def metadata() -> bytes:
    names: list[str] = []

    def of(name: str) -> bytes:
        if name not in names:
            names.append(name)
        return number(names.index(name))

    def element(name: str, attributes: dict[str, str], children: list[bytes]) -> bytes:
        parts = [of(name), number(len(attributes))]
        parts += [of(key) + of(value) for key, value in attributes.items()]
        return b"".join([*parts, number(len(children)), *children])

    classes = []
    for type_id, (name, fields) in TYPES.items():
        own = []
        for field, of_type, is_list, is_pooled in fields:
            attributes = {"name": field, "class": str(of_type)}
            attributes |= {"dimension": "1"} if is_list else {}
            attributes |= {"constantPool": "true"} if is_pooled else {}
            own.append(element("field", attributes, [element("annotation", {"class": "9"}, [])]))
        classes.append(element("class", {"id": str(type_id), "name": name}, own))
    tree = element("root", {}, [element("metadata", {}, classes), element("region", {"locale": "en"}, [])])
    head = number(1) * 3 + number(len(names)) + b"".join(map(text, names))
    return event(0, head + tree)


def checkpoint(pools: dict[int, dict[int, bytes]]) -> bytes:
    parts = [number(1) * 3, b"\0", number(len(pools))]
    for type_id, values in pools.items():
        parts += [number(type_id), number(len(values))]
        parts += [number(key) + value for key, value in values.items()]
    return event(1, b"".join(parts))


def chunk(*events: bytes, major: int = 2, features: int = 1) -> bytes:
    body = metadata() + b"".join(events)
    header = struct.pack(">4sHHqqqqqqqi", b"FLR\0", major, 1, 68 + len(body), 0, 68, 0, 0, 0, 0, features)
    return header + body


SYMBOLS = {1: "shop/Cart", 2: "add", 3: "[B", 4: "java/lang/Class", 5: "java/util/ArrayList", 6: "grow"}
# An array of bytes, of a list, which Cart.items holds.
POOLS: dict[int, dict[int, bytes]] = {
    20: {key: number(name) for key, name in ((1, 1), (3, 3), (4, 4), (5, 5))},
    21: {key: text(name) for key, name in SYMBOLS.items()},
    22: {1: number(1) + number(2), 2: number(5) + number(6)},
    24: {
        1: b"\0" + number(2) + number(2) + number(300) + number(1) + number(7),
        2: b"\0" + number(1) + number(1) + number(9),
    },
    25: {
        1: number(2**62 + 5) + number(3) + text(None) + number(1),
        2: number(9) + number(5) + text("Size: 7") + number(2),
        3: number(9) + number(4) + text("Class Name: shop/Cart") + number(3),
        4: number(9) + number(3) + text(None) + number(0),
    },
    # The class is held by a list of its loader.
    26: {1: number(1) + number(2), 2: number(2) + number(3), 3: number(2) + number(2)},
    27: {1: text("elementData"), 2: text("items")},
    28: {1: text("Thread Name: main") + text("Threads") + text("Stack Variable")},
}


def sample(place: int, root: int, stack: int = 1) -> bytes:
    return event(100, number(77) + struct.pack(">d", 0.5) + number(stack) + number(place) + number(root))


def test_who_allocates_and_what_holds() -> None:
    """Types, methods and lines as they are written in Java; garbage is left out, chunks are added up."""
    held, rooted, garbage = sample(1, 1), sample(4, 1), sample(4, 0)
    listed = sample(2, 1)
    other = event(101, number(5))
    first = chunk(held, other, listed, checkpoint(POOLS), held, garbage)
    stack = (Line("java.util.ArrayList.grow", 300), Line("shop.Cart.add", 7))

    alone = found_objects(first)
    both = found_objects(first + chunk(checkpoint(POOLS), held))

    assert [(row.type, row.samples, row.stack) for row in alone.rows] == [
        ("byte[]", 2, stack),
        ("java.util.ArrayList", 1, stack),
    ]
    assert alone.rows[0].held_by == ("shop.Cart.items", "java.util.ArrayList.elementData")
    assert (alone.samples, both.samples) == (3, 4)
    of_root = found_objects(chunk(rooted, checkpoint(POOLS)))
    assert of_root.rows[0].held_by == ("Threads, Stack Variable, Thread Name: main",)


def test_two_stacks_with_one_type() -> None:
    """They have an order, also with as many samples."""
    found = found_objects(chunk(sample(1, 1), sample(1, 1, 2), checkpoint(POOLS)))
    assert [row.stack[0].method for row in found.rows] == ["java.util.ArrayList.grow", "shop.Cart.add"]


def test_a_search_that_was_given_up() -> None:
    """No sample has a holder: all are reported without one."""
    found = found_objects(chunk(sample(4, 0), checkpoint(POOLS)))
    assert (found.samples, found.rows[0].held_by) == (1, ())


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"PK\3\4" + bytes(100), "does not begin"),
        (chunk(major=1), "does not begin"),
        (chunk(features=0), "not compressed"),
        (chunk()[:-1], "a chunk of"),
        (chunk(number(0)), "an event of 0 bytes"),
        (chunk(event(1, number(1) * 3 + b"\0" + number(1) + number(99) + number(1) + number(1))), "unknown"),
        (chunk(event(1, number(1) * 3 + b"\0" + number(2**40))), "values in"),
    ],
)
def test_one_that_is_wrong(data: bytes, words: str) -> None:
    """It is refused, in words."""
    with pytest.raises(BadRecording, match=words):
        found_objects(data)


def test_whatever_bytes() -> None:
    """From an untrusted process: no other exception is raised."""
    good = chunk(sample(1, 1), checkpoint(POOLS))
    random_ = random.Random(7)
    refused = 0
    for _ in range(2_000):
        data = bytearray(good)
        for _change in range(random_.randint(1, 4)):
            data[random_.randrange(68, len(data))] = random_.randrange(256)
        try:
            found_objects(bytes(data))
        except BadRecording:
            refused += 1
    assert refused > 100


def test_values_that_refer_to_nothing() -> None:
    """They are None, and so are their fields."""
    ((found, resolver),) = read_events(chunk(sample(9, 9)), ("jdk.OldObjectSample",))
    values: list[Any] = [resolver.field(found, "object", "type"), resolver.field(found, "weight", "no")]
    assert values == [None, None]
    assert resolver.text(found, "object", "description") == ""
