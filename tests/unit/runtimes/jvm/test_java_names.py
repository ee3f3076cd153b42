"""Names of Java's classes, methods and types."""

from __future__ import annotations

import pytest

from bpfleakd.runtimes.jvm.heap_types import histogram_rows, java_type_name
from bpfleakd.runtimes.jvm.java_names import java_method_name
from bpfleakd.runtimes.runtime import TypeCount


@pytest.mark.parametrize(
    ("holder", "method", "expected"),
    [
        ("shop/Buffers", "take", "shop.Buffers.take"),
        ("Main$Order", "<init>", "Main$Order.<init>"),
        ("Main", "lambda$main$0", "Main.lambda$main$0"),
        ("Main$$Lambda$14+0x0000000800c01000", "run", "Main$$Lambda.run"),
        ("Main$$Lambda+0x00007f0001000a00", "run", "Main$$Lambda.run"),
        (
            "jdk/internal/reflect/GeneratedMethodAccessor17",
            "invoke",
            "jdk.internal.reflect.GeneratedMethodAccessor.invoke",
        ),
        ("com/sun/proxy/$Proxy12", "get", "com.sun.proxy.$Proxy.get"),
        ("a/B\x1b[2J", "c", "a.B\\x1b[2J.c"),
    ],
)
def test_methods(holder: str, method: str, expected: str) -> None:
    """Without what differs from run to run."""
    assert java_method_name(holder, method) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("[B", "byte[]"),
        ("[[I", "int[][]"),
        ("[Ljava.lang.String;", "java.lang.String[]"),
        ("shop.Order", "shop.Order"),
        ("[", "[]"),
    ],
)
def test_types(name: str, expected: str) -> None:
    """As in source code."""
    assert java_type_name(name) == expected


HISTOGRAM = """ num     #instances         #bytes  class name (module)
-------------------------------------------------------
   1:         20011        1600880  [B (java.base@17.0.15)
   2:           100           2400  shop.Order
   3:            10            240  shop.Order (app@1.0)
   4:             1             16  jdk.internal.misc.Unsafe (java.base@17.0.15)
Total         20122        1603536
"""


def test_a_histogram() -> None:
    """Classes with one name are one type; other lines are skipped."""
    assert histogram_rows(HISTOGRAM) == [
        TypeCount("byte[]", 1600880, 20011),
        TypeCount("shop.Order", 2640, 110),
        TypeCount("jdk.internal.misc.Unsafe", 16, 1),
    ]
    assert histogram_rows("1: x\n" * 3 + "-1") == []
