"""The limit of a .NET heap, from the environment."""

from __future__ import annotations

import pytest

from bpfleakd.runtimes.dotnet.live_heap import hard_limit_bytes

MIB = 1 << 20


@pytest.mark.parametrize(
    ("environment", "version", "limit_bytes"),
    [
        ({}, "3.1.23", None),
        ({b"COMPlus_GCHeapHardLimit": b"4000000"}, "3.1.23", 64 * MIB),
        ({b"COMPlus_GCHeapHardLimit": b"0xC800000"}, "8.0.1", 200 * MIB),
        ({b"DOTNET_GCHeapHardLimit": b"4000000", b"COMPlus_GCHeapHardLimit": b"1"}, "8.0.1", 64 * MIB),
        ({b"DOTNET_GCHeapHardLimit": b"4000000"}, "", 64 * MIB),
        # Runtimes before 5 do not look at it.
        ({b"DOTNET_GCHeapHardLimit": b"4000000"}, "3.1.23", None),
        ({b"COMPlus_GCHeapHardLimit": b"0"}, "3.1.23", None),
        ({b"COMPlus_GCHeapHardLimit": b"200M"}, "3.1.23", None),
        ({b"COMPlus_GCHeapHardLimit": b"f" * 5_000}, "3.1.23", None),
    ],
)
def test_the_limit(environment: dict[bytes, bytes], version: str, limit_bytes: int | None) -> None:
    """It is hexadecimal, with or without 0x; anything else says nothing."""
    assert hard_limit_bytes(environment, version) == limit_bytes
