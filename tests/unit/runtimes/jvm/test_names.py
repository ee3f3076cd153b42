"""Names of interpreted frames: only if all that the frame holds agrees with the method that is there now."""

from __future__ import annotations

from typing import Any, cast

import pytest

from bpfleakd.model.code.managed_frame import ManagedFrame, check_of
from bpfleakd.process.remote_memory import RemoteMemory
from bpfleakd.runtimes.jvm.java_method import JavaMethod
from bpfleakd.runtimes.jvm.layout import JvmLayout
from bpfleakd.runtimes.jvm.names import JavaNames

CODE, CODE_BYTES, CACHE = 0x7F00_0000_1000, 40, 0x1234_5678
RUN = JavaMethod("Shop.run", "Shop.java", CODE, CODE_BYTES, ((0, 7), (20, 9)), is_hidden=False, check=CACHE)
NATIVE = JavaMethod("Shop.wait", None, CODE, 0, (), is_hidden=False, check=CACHE)
OTHERS = CACHE + 8


class Layout:
    """As much of a layout as names of interpreted frames need."""

    debug = None

    class code:
        method = 0

    class method:
        const_method = 8


def names(method: JavaMethod, monkeypatch: pytest.MonkeyPatch) -> JavaNames:
    """Names in a process with one method at each address."""
    found = JavaNames(cast(RemoteMemory, None), cast(JvmLayout, cast(Any, Layout)))
    monkeypatch.setattr(found, "method", lambda _address: method)
    return found


@pytest.mark.parametrize(
    ("method", "cache", "position", "expected"),
    [
        (RUN, CACHE, CODE, ("Shop.run", 7)),
        (RUN, CACHE, CODE + CODE_BYTES - 1, ("Shop.run", 9)),
        # Other code has the place of a method of the same class, or of one whose class is gone.
        (RUN, CACHE, CODE + CODE_BYTES, ("Java method", None)),
        (RUN, CACHE, CODE - 1, ("Java method", None)),
        (RUN, CACHE, None, ("Java method", None)),
        (RUN, OTHERS, CODE, ("Java method", None)),
        # A native method has no instructions.
        (NATIVE, CACHE, 0x7F00_0000_9000, ("Shop.wait", None)),
        (NATIVE, OTHERS, 0x7F00_0000_9000, ("Java method", None)),
    ],
)
def test_a_frame_is_of_the_method_that_is_there(
    method: JavaMethod,
    cache: int,
    position: int | None,
    expected: tuple[str, int | None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the cache of its class' constants, and by its instruction."""
    frame = ManagedFrame(0x1000, 0x7F00_0000_5000, check_of(cache), position)
    (found,) = names(method, monkeypatch).interpreted(frame)
    assert (found.name, found.line) == expected
