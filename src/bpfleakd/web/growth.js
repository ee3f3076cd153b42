// The plot of the largest call sites over time.

import { element, whenShown } from "./elements.js";
import { bytes, clock, shortName } from "./words.js";

const COLOURS = ["#d1495b", "#2e86ab", "#c98a1b", "#5b8c5a", "#8e6bbf", "#8a817c"];
const DENSE = 60;
// The powers of 1024 and the powers of two between them: 16, 32, 64 MiB.
// Steps of the time axis that a few minutes and a small screen need; uPlot has none between 1 and 5 minutes.
const TIME_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800];
const BINARY_STEPS = Array.from({ length: 60 }, (_, power) => 2 ** power);
let logarithmic = false;

export function growthPlot(history, report) {
  const place = element("div", { class: "plot", id: "growth", role: "img",
    "aria-label": "live bytes of the largest call sites, and of all together, over time" });
  const lines = linesByName(history, report).sort((a, b) => b.most - a.most).slice(0, COLOURS.length);
  const total = history.ends_s.map((_, bin) => history.sites.reduce((sum, site) => sum + (site.low_bytes[bin] || 0), 0));
  const style = getComputedStyle(document.body);
  const axis = { stroke: style.color, grid: { stroke: "#8883", width: 1 } };
  const began_s = Date.now() / 1000 - report.process.attached_s;
  const times = history.ends_s.map((end) => began_s + end);
  // Dense lines have no markers; a logarithm has no zero.
  const points = { show: times.length <= DENSE };
  const values = (low) => (logarithmic ? low.map((value) => (value > 0 ? value : null)) : low);
  const value = (_, size) => (size === null ? "" : bytes(size));
  const label = (size) => (size === null ? "" : bytes(size).replace(/\.0+ /, " "));
  const draw = () => {
    place.replaceChildren();
    const chart = new uPlot({
      width: Math.max(240, place.clientWidth), height: 260, padding: [null, 32, null, null],
      scales: { y: logarithmic ? { distr: 3, log: 2 } : { range: (_, __, most) => [0, Math.max(most * 1.05, 1)] } },
      axes: [{ ...axis, space: 80, incrs: TIME_STEPS, values: (_, marks) => marks.map(clock) },
        { ...axis, size: 78, incrs: BINARY_STEPS, values: (_, marks) => marks.map(label) }],
      series: [{ label: "", value: (_, time) => (time ? clock(time) : "") },
        { label: "all call sites", stroke: style.color, dash: [6, 4], width: 1, points, value },
        ...lines.map((line, index) => ({
          label: line.name, stroke: COLOURS[index], width: 2, points, value }))],
    }, [times, values(total), ...lines.map((line) => values(line.low_bytes))], place);
    new ResizeObserver(() => {
      const width = Math.max(240, place.clientWidth);
      if (width !== chart.width) chart.setSize({ width, height: 260 });
    }).observe(place);
  };
  const box = element("input", { type: "checkbox", id: "logarithmic" });
  box.checked = logarithmic;
  box.addEventListener("change", () => {
    logarithmic = box.checked;
    draw();
  });
  whenShown(place, draw);
  return element("div", {}, element("label", { class: "choice" }, box, " logarithmic scale"), place);
}

// Call sites of the same function and line, which differ above it, are one line.
function linesByName(history, report) {
  const lines = new Map();
  for (const site of history.sites) {
    const name = lineLabel(site, report);
    const line = lines.get(name) || { name, low_bytes: history.ends_s.map(() => 0) };
    line.low_bytes = line.low_bytes.map((low, bin) => low + (site.low_bytes[bin] || 0));
    lines.set(name, line);
  }
  return [...lines.values()].map((line) => ({ ...line, most: Math.max(...line.low_bytes, 0) })).filter((line) => line.most > 0);
}

// Functions with the same name are distinguished by their line.
function lineLabel(site, report) {
  const shown = report.sites.find((each) => each.site === site.site);
  const name = shortName(site.function || "[unknown]", 40);
  return shown && shown.location ? `${name} ${shown.location.split("/").pop()}` : name;
}
