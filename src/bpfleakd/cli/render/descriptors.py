"""The call sites that hold open file descriptors, a line each, and the stacks of the first ones."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from bpfleakd.cli.render.sites import VERDICT_STYLES
from bpfleakd.cli.render.stacks import basename, stack_lines
from bpfleakd.model.resources import DescriptorSite
from bpfleakd.printable import printable, shortened

__all__ = ["descriptor_lines"]

_SITES_MAX = 5


def descriptor_lines(sites: Sequence[DescriptorSite], width: int | None, stacks: int) -> list[Text]:
    """Return the lines of the first call sites, the first `stacks` with stacks; none without sites."""
    if not sites:
        return []
    total = sum(site.open_count for site in sites)
    lines = [Text(f"{total:,} open file descriptors, opened since they are recorded, by call site:")]
    for place, site in enumerate(sites[:_SITES_MAX]):
        line = _line(site)
        style = VERDICT_STYLES.get(site.verdict, "")
        lines.append(Text(line if width is None else shortened(line, width), style))
        if place < stacks:
            lines += stack_lines(site, width)
    return lines


def _line(site: DescriptorSite) -> str:
    growth = f"+{site.growth_per_min:,.0f}/min" if site.growth_per_min else ""
    where = site.function or (basename(site.module) if site.module else "?")
    what = f"{site.shares[0].share:.0%} {site.shares[0].what}" if site.shares else ""
    parts = (
        f"{site.verdict:<8}",
        f"{growth:>11}",
        f"{site.open_count:,} of {site.opened_count:,} open",
        " ".join(word for word in (where, basename(site.location or "")) if word),
        what,
    )
    return printable("  ".join(part for part in parts if part))
