"""Panels, tables and variables, as all dashboards have them."""

from __future__ import annotations

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, table, timeseries
from grafana_foundation_sdk.models.common import (
    BigValueColorMode,
    BigValueGraphMode,
    LegendDisplayMode,
    LegendPlacement,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    DataSourceRef,
    DataTransformerConfig,
    DynamicConfigValue,
    VariableOption,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
HOST = 'instance=~"$instance"'
PROCESS = f'{HOST}, comm=~"$comm"'
BYTES, RATE, SECONDS, RATIO = "bytes", "binBps", "s", "percentunit"
WIDTH = 24
# Of columns whose texts are short; the others share the rest. In pixels.
WIDTHS = {
    "attach_method": 130,
    "comm": 130,
    "instance": 150,
    "kind": 90,
    "mode": 80,
    "pid": 80,
    "site": 180,
    "state": 80,
    "verdict": 80,
    "version": 80,
}
VALUE_WIDTH = 110

Panel = stat.Panel | table.Panel | timeseries.Panel


def query(expression: str, legend: str = "") -> prometheus.Dataquery:
    """A query over the time that is shown."""
    return prometheus.Dataquery().expr(expression).legend_format(legend).range()


def figure(title: str, expression: str, unit: str, description: str) -> stat.Panel:
    """One number with its course."""
    return (
        stat.Panel()
        .title(title)
        .description(description)
        .datasource(SOURCE)
        .with_target(query(expression, title).ref_id("A"))
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .unit(unit)
        .graph_mode(BigValueGraphMode.AREA)
        .color_mode(BigValueColorMode.VALUE)
        .no_value("-")
        .height(4)
        .span(4)
    )


def graph(
    title: str, unit: str, description: str, *queries: tuple[str, str], span: int = 12
) -> timeseries.Panel:
    """Lines over time; `queries` are expressions with their legends."""
    panel = (
        timeseries.Panel()
        .title(title)
        .description(description)
        .datasource(SOURCE)
        .unit(unit)
        .fill_opacity(8)
        .line_width(1)
        .legend(
            common.VizLegendOptions()
            .display_mode(LegendDisplayMode.TABLE)
            .placement(LegendPlacement.BOTTOM)
            .show_legend(True)
            .calcs(["lastNotNull"])
        )
        .height(9)
        .span(span)
    )
    for number, (expression, legend) in enumerate(queries):
        panel.with_target(query(expression, legend).ref_id(chr(ord("A") + number)))
    return panel


def rows(
    title: str,
    unit: str,
    description: str,
    expression: str,
    *columns: str,
    value: str,
    link: tuple[str, str, str] | None = None,
    span: int = WIDTH,
) -> table.Panel:
    """A table of what is now: `columns` are labels, then comes the value, under the name `value`.

    `link`: column, text, URL.
    """
    shown = [*columns, "Value"]
    panel = (
        table.Panel()
        .title(title)
        .description(description)
        .datasource(SOURCE)
        .with_target(
            prometheus.Dataquery().expr(expression).instant().format(PromQueryFormat.TABLE).ref_id("A")
        )
        .with_transformation(
            DataTransformerConfig(id_val="filterFieldsByName", options={"include": {"names": shown}})
        )
        .with_transformation(
            DataTransformerConfig(
                id_val="organize",
                options={
                    "indexByName": {name: index for index, name in enumerate(shown)},
                    "renameByName": {"Value": value},
                },
            )
        )
        .override_by_name(
            value, [DynamicConfigValue("unit", unit), DynamicConfigValue("custom.width", VALUE_WIDTH)]
        )
        .height(9)
        .span(span)
    )
    for column in columns:
        settings = [DynamicConfigValue("custom.width", WIDTHS[column])] if column in WIDTHS else []
        if link is not None and column == link[0]:
            links = [{"title": link[1], "url": link[2], "targetBlank": True}]
            settings.append(DynamicConfigValue("links", links))
        if settings:
            panel.override_by_name(column, settings)
    return panel


def label_variable(name: str, expression: str, *, many: bool) -> dashboard.QueryVariable:
    """A choice among the values of a label."""
    variable = (
        dashboard.QueryVariable(name)
        .label(name)
        .datasource(SOURCE)
        .query({"query": expression, "refId": name})
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
    )
    if many:
        variable.multi(True).include_all(True).all_value(".*").current(
            VariableOption(selected=True, text="All", value="$__all")
        )
    return variable


def board(
    uid: str, title: str, description: str, panels: list[Panel], *variables: object
) -> dashboard.Dashboard:
    """A dashboard with the variables and links that all have."""
    made = (
        dashboard.Dashboard(title)
        .uid(uid)
        .description(description)
        .tags(["bpfleakd"])
        .refresh("30s")
        .time("now-1h", "now")
        .timezone("browser")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .link(
            dashboard.DashboardLink("bpfleakd")
            .type(DashboardLinkType.DASHBOARDS)
            .tags(["bpfleakd"])
            .include_vars(True)
            .keep_time(True)
        )
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .with_variable(label_variable("instance", "label_values(bpfleakd_build_info, instance)", many=True))
    )
    for variable in variables:
        made.with_variable(variable)
    for panel in panels:
        made.with_panel(panel)
    return made
