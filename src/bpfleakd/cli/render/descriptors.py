"""The call sites with open file descriptors, one line each, and the stacks of the first ones."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from bpfleakd.cli.render.headlines import headline, headline_place
from bpfleakd.cli.render.sites import VERDICT_STYLES
from bpfleakd.cli.render.stacks import basename, stack_lines
from bpfleakd.cli.render.words import fitted
from bpfleakd.model.report import LeakReport
from bpfleakd.model.resources import DescriptorSite, DescriptorTotals
from bpfleakd.printable import printable, shortened

_SITES_MAX = 5


def descriptor_lines(report: LeakReport, width: int | None, stacks: int) -> list[Text]:
    """Return the lines of the first call sites, the first `stacks` with stacks; none if none are recorded."""
    return _lines(report, width, stacks, _SITES_MAX)


def all_descriptor_lines(report: LeakReport, width: int) -> list[Text]:
    """The same of all call sites, with stacks."""
    sites = len(report.descriptor_sites)
    return _lines(report, width, sites, sites) or [Text("no descriptors are recorded: they do not grow")]


def growing_site_lines(sites: Sequence[DescriptorSite], width: int) -> list[Text]:
    """Return one line, on the call site whose open descriptors grow fastest; none if they do not grow."""
    growing = [site for site in sites[:1] if site.growth_per_min]
    hint = "  (o shows all)"
    return [
        Text(shortened(f"open files: {_line(site)}", max(width - len(hint), len(hint))) + hint)
        for site in growing
    ]


def _lines(report: LeakReport, width: int | None, stacks: int, sites_max: int) -> list[Text]:
    totals = report.descriptor_totals
    if totals is None:
        return []
    lines = [_fitted(f"open file descriptors: {_sum(totals)}", width)]
    if totals.other_reason:
        lines.append(_fitted(printable(totals.other_reason), width))
    for place, site in enumerate(report.descriptor_sites[:sites_max]):
        lines.append(_fitted(_line(site), width, VERDICT_STYLES.get(site.verdict, "")))
        if place < stacks:
            lines += stack_lines(site, width)
    return lines


def _sum(totals: DescriptorTotals) -> str:
    parts = [f"{totals.recorded_count:,} by call sites"]
    parts += [f"{totals.earlier_count:,} from before the recording"] * bool(totals.earlier_count)
    parts += [f"{totals.other_count:,} otherwise"] * bool(totals.other_count)
    return f"{totals.open_count:,} ({', '.join(parts)})"


def _fitted(line: str, width: int | None, style: str = "") -> Text:
    return Text(fitted(line, width), style)


def _line(site: DescriptorSite) -> str:
    growth = f"+{site.growth_per_min:,.0f}/min" if site.growth_per_min else ""
    where = headline(site) if site.function or site.called_by else basename(site.module or "?")
    what = f"{site.shares[0].share:.0%} {site.shares[0].what}" if site.shares else ""
    parts = (
        f"{site.verdict:<8}",
        f"{growth:>11}",
        f"{site.open_count:,} of {site.opened_count:,} open",
        " ".join(word for word in (where, basename(headline_place(site) or "")) if word),
        what,
    )
    return printable("  ".join(part for part in parts if part))
