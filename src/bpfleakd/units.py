"""Figures for people: binary units of bytes, durations in two parts."""

from __future__ import annotations

_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def human_bytes(count: float) -> str:
    """Return a size with three significant digits: "1.21 MiB"; whole numbers below 1 KiB."""
    unit = 0
    # 1023.5 would be rounded to 1024.
    while abs(count) >= 1023.5 and unit < len(_BYTE_UNITS) - 1:
        count /= 1024
        unit += 1
    if unit == 0:
        decimals = 0
    elif abs(count) < 9.995:
        decimals = 2
    else:
        decimals = 1 if abs(count) < 99.95 else 0
    return f"{count:.{decimals}f} {_BYTE_UNITS[unit]}"


def human_rate(bytes_per_s: float) -> str:
    """Return a signed rate: "+1.21 MiB/s"."""
    if abs(bytes_per_s) < 0.5:
        return "0 B/s"
    return f"{'+' if bytes_per_s > 0 else ''}{human_bytes(bytes_per_s)}/s"


def human_duration(seconds: float) -> str:
    """Return "42s", "3m12s", "2h05m" or "3d04h"."""
    whole = max(0, int(seconds))
    minutes, hours, days = whole // 60, whole // 3600, whole // 86_400
    if not minutes:
        return f"{whole}s"
    if not hours:
        return f"{minutes}m{whole % 60:02}s"
    if not days:
        return f"{hours}h{minutes % 60:02}m"
    return f"{days}d{hours % 24:02}h"


def human_percent(percent: float) -> str:
    """Return "0.3%" or "17%"; "" for nothing."""
    if percent < 0.05:
        return ""
    return f"{percent:.1f}%" if percent < 9.95 else f"{percent:.0f}%"
