// Draws a dashboard with the components that Grafana draws it with: panels and overrides as its JSON has them,
// transformations, units, tables, lines. `draw.py` puts the dashboard and what Prometheus answered into the page.
import { createRoot } from "react-dom/client";
import { firstValueFrom } from "rxjs";

// Not by import: their modules take CommonJS packages for what esbuild, as Node.js does, has in `default`.
const {
  applyFieldOverrides,
  createTheme,
  dateTime,
  FieldConfigOptionsRegistry,
  FieldType,
  fieldMatchers,
  getFieldDisplayValues,
  identityOverrideProcessor,
  MutableDataFrame,
  standardTransformers,
  standardTransformersRegistry,
  ThemeContext,
  toDataFrame,
  transformDataFrame,
} = require("@grafana/data");
const { BigValue, GlobalStyles, PanelChrome, Table, TimeSeries } = require("@grafana/ui");

const COLUMNS = 24, CELL = 30, GAP = 8, PADDING = 12;
const { dashboard, answers, from_ms, to_ms, mode } = window.scene;
const theme = createTheme({ colors: { mode } });
const timeZone = "utc";
const timeRange = { from: dateTime(from_ms), to: dateTime(to_ms), raw: { from: "now-5m", to: "now" } };
const asItIs = (text) => text;

// Some have two names.
const transformers = new Map(Object.values(standardTransformers).map((one) => [one.id, one]));
standardTransformersRegistry.setInit(() =>
  [...transformers.values()].map((one) => ({ id: one.id, name: one.name, transformation: one })));

// The options of Grafana's panels are registered by Grafana itself; these are the ones that the dashboards set.
const option = (path, isCustom = false) => ({
  id: isCustom ? `custom.${path}` : path, path, isCustom, name: path,
  process: identityOverrideProcessor, shouldApply: () => true,
});
const options = new FieldConfigOptionsRegistry();
options.setInit(() => [
  ...["unit", "noValue", "links", "color", "thresholds", "min", "max", "decimals"].map((path) => option(path)),
  ...["drawStyle", "lineWidth", "fillOpacity", "showPoints", "pointSize", "lineInterpolation", "spanNulls",
    "axisPlacement", "axisGridShow", "gradientMode", "width"].map((path) => option(path, true)),
]);

// What Grafana puts where a dashboard says nothing.
const DEFAULTS = {
  stat: { color: { mode: "thresholds" }, thresholds: { mode: "absolute", steps: [{ value: -Infinity, color: "green" }] } },
  timeseries: {
    color: { mode: "palette-classic" },
    custom: { drawStyle: "line", lineInterpolation: "linear", showPoints: "never", pointSize: 5, axisPlacement: "auto" },
  },
  table: {},
};

function framesOf(panel) {
  return panel.targets.flatMap((target, index) => answers[panel.id][index].map(({ name, times_ms, values, columns }) => {
    if (columns) {
      return toDataFrame({ refId: target.refId, fields: columns });
    }
    const fields = [
      { name: "Time", type: FieldType.time, values: times_ms },
      { name: "Value", type: FieldType.number, values, config: { displayNameFromDS: name } },
    ];
    return toDataFrame({ refId: target.refId, name, fields });
  }));
}

async function dataOf(panel) {
  const frames = await firstValueFrom(transformDataFrame(panel.transformations ?? [], framesOf(panel), { interpolate: asItIs }));
  const { defaults, overrides } = panel.fieldConfig;
  const standard = DEFAULTS[panel.type];
  return applyFieldOverrides({
    data: frames,
    fieldConfig: {
      defaults: { ...standard, ...defaults, custom: { ...standard.custom, ...defaults.custom } },
      overrides: overrides.filter((rule) => fieldMatchers.getIfExists(rule.matcher.id)),
    },
    fieldConfigRegistry: options, replaceVariables: asItIs, theme, timeZone,
  });
}

const DRAWN = {
  stat(panel, frames, width, height) {
    const { reduceOptions, colorMode, graphMode, textMode, justifyMode } = panel.options;
    const [value] = getFieldDisplayValues({
      data: frames, fieldConfig: panel.fieldConfig, reduceOptions, replaceVariables: asItIs, theme, timeZone,
      sparkline: graphMode !== "none",
    });
    // One value under a title that says what it is.
    const display = { ...value.display, title: undefined };
    return <BigValue {...{ theme, width, height, colorMode, graphMode, justifyMode }} textMode="value"
      value={display} sparkline={value.sparkline} />;
  },
  timeseries(panel, frames, width, height) {
    return <TimeSeries {...{ frames, width, height, timeRange, timeZone }} legend={panel.options.legend} />;
  },
  table(panel, frames, width, height) {
    return <Table data={frames[0] ?? new MutableDataFrame()} {...{ width, height }} timeRange={timeRange} />;
  },
};

function Panel({ panel, frames, width }) {
  const { x, y, w, h } = panel.gridPos;
  const column = (width - 2 * PADDING + GAP) / COLUMNS;
  const place = {
    position: "absolute", left: PADDING + x * column, top: PADDING + y * (CELL + GAP),
    width: w * column - GAP, height: h * (CELL + GAP) - GAP,
  };
  return (
    <div style={place}>
      <PanelChrome title={panel.title} description={panel.description} width={place.width} height={place.height}>
        {(innerWidth, innerHeight) => DRAWN[panel.type](panel, frames, innerWidth, innerHeight)}
      </PanelChrome>
    </div>
  );
}

const panels = await Promise.all(dashboard.panels.map(async (panel) => ({ panel, frames: await dataOf(panel) })));
createRoot(document.getElementById("dashboard")).render(
  <ThemeContext.Provider value={theme}>
    <GlobalStyles />
    {panels.map(({ panel, frames }) => <Panel key={panel.id} {...{ panel, frames }} width={window.innerWidth} />)}
  </ThemeContext.Provider>
);
