// The page at http://127.0.0.1:9797/: who is traced, who leaks and why. It reads /v1 and changes nothing.
// Whatever comes from the daemon is put in as text, never as markup: programs choose their own names.

const REFRESH_MS = 5000;
const SITES = 50;
const VALUES = { "live-bytes": "live bytes", "live-count": "live blocks", "growth": "growth",
  "allocated-bytes": "allocated bytes", "allocated-count": "allocations" };

const view = document.getElementById("view");
const state = document.getElementById("state");

// -- figures ------------------------------------------------------------------------------------------------

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

function bytes(number) {
  if (number === null || number === undefined) return "–";
  let unit = 0;
  while (Math.abs(number) >= 1023.5 && unit < UNITS.length - 1) {
    number /= 1024;
    unit += 1;
  }
  return (unit === 0 ? String(Math.round(number)) : number.toPrecision(3)) + " " + UNITS[unit];
}

function rate(number) {
  if (number === null || number === undefined) return "–";
  if (Math.abs(number) < 0.5) return "0 B/s";
  return (number > 0 ? "+" : "−") + bytes(Math.abs(number)) + "/s";
}

function count(number) {
  return number === null || number === undefined ? "–" : Math.round(number).toLocaleString("en");
}

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  for (const [unit, length] of [["d", 86400], ["h", 3600], ["min", 60]]) {
    if (seconds >= 2 * length) return (seconds / length).toFixed(1) + " " + unit;
  }
  return Math.round(seconds) + " s";
}

// -- elements -----------------------------------------------------------------------------------------------

function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

function badge(verdict) {
  return verdict ? element("span", { class: "badge " + verdict }, verdict) : null;
}

// Columns are [heading, class, cell of a row]; `href` of a row is where a click on it leads.
function table(columns, rows, href) {
  const head = element("tr", {}, ...columns.map(([title, kind]) => element("th", { class: kind }, title)));
  const body = rows.map((row) => {
    const target = href && href(row);
    const line = element("tr", target ? { "data-href": target, tabindex: 0 } : {},
      ...columns.map(([, kind, cell]) => element("td", { class: kind }, ...[cell(row)].flat())));
    return line;
  });
  return element("table", {}, element("thead", {}, head), element("tbody", {}, ...body));
}

function openRow(event) {
  const row = event.target.closest("tr[data-href]");
  if (row && (event.type === "click" || event.key === "Enter")) location.hash = row.dataset.href;
}
view.addEventListener("click", openRow);
view.addEventListener("keydown", openRow);

function facts(...pairs) {
  return element("ul", { class: "facts" },
    ...pairs.filter(([, value]) => value !== null && value !== undefined && value !== "")
      .map(([name, value]) => element("li", {}, name + " ", element("b", {}, value))));
}

function spark(values) {
  const space = "http://www.w3.org/2000/svg";
  const picture = document.createElementNS(space, "svg");
  picture.setAttribute("class", "spark");
  picture.setAttribute("viewBox", "0 0 100 20");
  picture.setAttribute("preserveAspectRatio", "none");
  if (values && values.length > 1) {
    const most = Math.max(...values, 1);
    const step = 100 / (values.length - 1);
    const path = document.createElementNS(space, "path");
    path.setAttribute("d", "M" + values.map((v, i) => `${(i * step).toFixed(1)} ${(19 - 18 * v / most).toFixed(1)}`)
      .join("L"));
    path.setAttribute("vector-effect", "non-scaling-stroke");
    picture.append(path);
  }
  return picture;
}

function losses(all) {
  const seen = Object.entries(all || {}).filter(([, number]) => number > 0);
  if (!seen.length) return element("p", { class: "faint" }, "Nothing was missed.");
  return element("p", { class: "loss" }, "Missed: " + seen.map(([why, n]) => `${why} ${count(n)}`).join(", ") + ".");
}

// -- data ---------------------------------------------------------------------------------------------------

async function get(path) {
  const answer = await fetch(path, { headers: { accept: "application/json" } });
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.error ? body.error.message : answer.statusText);
  return body;
}

// Parts of a view that another version of the daemon, or a process that has ended, does not have.
async function getIfThere(path) {
  try {
    return await get(path);
  } catch {
    return null;
  }
}

// -- views --------------------------------------------------------------------------------------------------

const SEVERITY = ["leak", "growing", "unknown", "plateau", "churn", "steady"];

async function overview() {
  const { processes: rows } = await get("v1/processes");
  const verdict = (row) => row.process_verdict;
  const severity = (row) => SEVERITY.indexOf(verdict(row) ? verdict(row).verdict : "unknown");
  rows.sort((a, b) => severity(a) - severity(b) || b.process.growth_bytes_per_s - a.process.growth_bytes_per_s);
  const parts = [element("h2", {}, "Traced processes")];
  if (rows.length) {
    parts.push(table([
      ["process", "name", (row) => [row.process.comm, element("small", {}, ` ${row.process.pid}`)]],
      ["verdict", "", (row) => badge(verdict(row) ? verdict(row).verdict : null) || "–"],
      ["leaks", "number", (row) => rate(verdict(row) ? verdict(row).leak_bytes_per_s : null)],
      ["limit in", "number", (row) => duration(verdict(row) ? verdict(row).limit_reached_s : null)],
      ["live", "number", (row) => bytes(row.process.live_bytes)],
      ["growth", "number", (row) => rate(row.process.growth_bytes_per_s)],
      ["why", "name", (row) => verdict(row) ? verdict(row).reason : "–"],
      ["mode", "", (row) => row.process.mode],
      ["state", "", (row) => row.process.state],
      ["missed", "number", (row) => count(Object.values(row.losses).reduce((a, b) => a + b, 0))],
    ], rows, (row) => `#/process/${row.process.pid}`));
  } else {
    parts.push(element("p", { class: "faint" }, "No process is traced. ",
      element("code", {}, "bpfleakctl attach PID"), " starts; so does growth, in mode auto."));
  }
  const watched = await getIfThere("v1/watched");
  const growing = watched ? watched.watched.filter((row) => row.growth_bytes_per_s > 0 || row.windows > 0) : [];
  if (growing.length) {
    parts.push(element("h2", {}, "Watched processes that grow"), table([
      ["process", "name", (row) => [row.comm, element("small", {}, ` ${row.pid}`)]],
      ["state", "", (row) => row.state],
      ["memory", "number", (row) => bytes(row.anonymous_bytes)],
      ["growth", "number", (row) => rate(row.growth_bytes_per_s)],
      ["looked at", "number", (row) => `${row.windows}×`],
      ["next look in", "number", (row) => duration(row.next_look_s)],
      ["", "name", (row) => row.reason],
    ], growing));
  }
  return parts;
}

async function processView(pid, siteWanted) {
  const report = await get(`v1/processes/${pid}/sites?limit=${SITES}`);
  const process = report.process;
  const history = process.state === "traced" ? await getIfThere(`v1/processes/${pid}/history?limit=${SITES}&survivors=false`) : null;
  const verdict = report.process_verdict;
  document.title = `${process.comm} ${process.pid} – bpfleakd`;
  const parts = [
    element("p", {}, element("a", { href: "#/" }, "← all processes")),
    element("h1", {}, `${process.comm}, pid ${process.pid} `, badge(verdict && verdict.verdict) || ""),
  ];
  if (verdict) parts.push(element("p", { class: "verdict " + verdict.verdict }, verdict.reason));
  parts.push(facts(["live", bytes(process.live_bytes)], ["blocks", count(process.live_count)],
    ["growth", rate(process.growth_bytes_per_s)], ["peak", bytes(process.peak_live_bytes)],
    ["traced for", duration(process.attached_s)], ["mode", process.mode], ["state", process.state],
    ["limit reached in", verdict && verdict.limit_reached_s ? duration(verdict.limit_reached_s) : null],
    ["explained", verdict && verdict.explained_share !== null ? Math.round(100 * verdict.explained_share) + " %" : null]));
  parts.push(losses(report.losses));

  const bySite = new Map((history ? history.sites : []).map((site) => [site.site, site.low_bytes]));
  if (history && history.ends_s.length > 1) parts.push(element("h2", {}, "Growth"), plot(history));
  parts.push(element("h2", {}, "Call sites"));
  parts.push(table([
    ["verdict", "", (site) => badge(site.verdict) || "–"],
    ["function", "name", (site) => [site.function || "?", " ",
      element("small", {}, [site.module, site.location].filter(Boolean).join(" "))]],
    ["kind", "", (site) => site.kind],
    ["leaks", "number", (site) => rate(site.leak_bytes_per_s)],
    ["live", "number", (site) => bytes(site.live_bytes)],
    ["blocks", "number", (site) => count(site.live_count)],
    ["growth", "number", (site) => rate(site.growth_bytes_per_s)],
    ["history", "", (site) => spark(bySite.get(site.site))],
  ], report.sites, (site) => `#/process/${pid}/site/${site.site}`));
  const site = report.sites.find((each) => each.site === siteWanted);
  if (site) parts.push(...siteView(site));
  parts.push(element("h2", {}, "Flame graph"), flameSection(pid), hiddenDetails(report) || "");
  return parts;
}

// Over TCP frames have the address 0, unless the configuration says otherwise.
function hiddenDetails(report) {
  const frames = report.sites.flatMap((site) => site.stack);
  if (!frames.length || frames.some((frame) => frame.address)) return null;
  return element("p", { class: "faint", id: "hidden" },
    "Addresses are not shown here. Blocks, code mappings and profiles: ",
    element("code", {}, `bpfleakctl report --pid ${report.process.pid}`), ", ", element("code", {}, "maps"), ", ",
    element("code", {}, "pprof"), "; or here, with ", element("code", {}, "metrics.details: true"), ".");
}

// A frame without a name, by its place in the file, or by its address where that is shown.
function frameName(frame) {
  if (frame.function) return frame.function;
  if (frame.module && frame.offset !== null) return `${frame.module.split("/").pop()}+0x${frame.offset.toString(16)}`;
  return frame.address ? "0x" + frame.address.toString(16) : "?";
}

function siteView(site) {
  const stack = element("ol", { class: "stack" }, ...site.stack.map((frame) => element("li", {},
    frameName(frame), " ",
    element("span", { class: "place" },
      [frame.module, frame.location, frame.inlined ? "inlined" : ""].filter(Boolean).join("  ")))));
  const threads = site.threads.map((t) => `${t.comm || "?"} (${t.tid}) ${bytes(t.live_bytes)}`).join(", ");
  const reached = site.scanned_age_s === null ? null :
    `${{ true: "yes", false: "no" }[site.reachable] || "partly"} (scan ${duration(site.scanned_age_s)} ago)`;
  return [
    element("h2", { id: "site" }, site.function || "?", " ", badge(site.verdict) || ""),
    site.reason ? element("p", { class: "verdict " + site.verdict },
      `${site.reason} (confidence ${Math.round(100 * site.confidence)} %)`) : null,
    facts(["site", site.site], ["allocated", bytes(site.allocated_bytes)], ["peak", bytes(site.peak_live_bytes)],
      ["oldest block", duration(site.oldest_age_s)], ["still pointed to", reached], ["threads", threads]),
    stack,
    site.truncated ? element("p", { class: "faint" }, `The stack is cut: ${site.truncated}.`) : null,
  ].filter(Boolean);
}

// What is drawn needs a width and its place in the document, which a view gets when all of it is there.
function whenShown(place, draw) {
  new ResizeObserver((_, observer) => {
    if (place.clientWidth > 0) {
      observer.disconnect();
      draw();
    }
  }).observe(place);
}

// Without its parameters a C++ function fits into the legend.
function lineLabel(site) {
  return (site.function || site.site).replace(/(?<=.)\(.*$/, "");
}

function plot(history) {
  const place = element("div", { class: "plot", id: "growth" });
  const lines = history.sites.map((site) => ({ site, most: Math.max(...site.low_bytes, 0) }))
    .filter((line) => line.most > 0).sort((a, b) => b.most - a.most).slice(0, 6);
  const colours = ["#d1495b", "#2e86ab", "#e8a33d", "#5b8c5a", "#8e6bbf", "#8a817c"];
  const axis = { stroke: getComputedStyle(document.body).color, grid: { stroke: "#8883", width: 1 } };
  const draw = () => new uPlot({
    width: Math.max(320, place.clientWidth), height: 240,
    scales: { x: { time: false } },
    axes: [{ ...axis, label: "seconds since the attach" },
      { ...axis, size: 76, values: (_, marks) => marks.map((mark) => bytes(mark)) }],
    series: [{ label: "s" }, ...lines.map((line, index) => ({
      label: lineLabel(line.site), stroke: colours[index], width: 2, value: (_, value) => bytes(value) }))],
  }, [history.ends_s, ...lines.map((line) => line.site.low_bytes)], place);
  whenShown(place, draw);
  return place;
}

function flameSection(pid) {
  const section = element("section", { id: "flames" });
  const choice = element("select", { "aria-label": "what the widths are" },
    ...Object.entries(VALUES).map(([value, words]) => element("option", { value }, words)));
  const box = element("div", {});
  const link = element("a", { target: "_blank" }, "on a page of its own");
  async function draw() {
    link.href = `flamegraph?pid=${pid}&value=${choice.value}`;
    const graph = await get(`v1/processes/${pid}/flamegraph?value=${choice.value}`);
    box.replaceChildren(
      element("div", {}, element("h3", { id: "title" }), element("p", { id: "subtitle" })),
      element("form", { id: "tools" },
        element("input", { id: "search", type: "search", placeholder: "search functions and modules",
          "aria-label": "search" }),
        element("button", { type: "button", id: "reset" }, "whole graph"), element("span", { id: "found" })),
      element("div", { id: "chart" }), element("p", { id: "details" }), element("ul", { id: "legend" }));
    drawFlameGraph(graph, document);
  }
  choice.addEventListener("change", draw);
  section.append(choice, " ", link, box);
  whenShown(section, () => draw().catch(fail));
  return section;
}

// -- the loop -----------------------------------------------------------------------------------------------

function fail(error) {
  state.className = "broken";
  state.textContent = error.message || String(error);
}

async function showDaemon() {
  const status = await get("v1/status");
  document.getElementById("daemon").textContent =
    `${status.version} · ${status.attach_method} · up ${duration(status.uptime_s)}`;
}

// A view that was asked for while another was being made is the one that is shown.
let turn = 0;

async function show(isRefresh) {
  const mine = ++turn;
  const [, kind, pid, , site] = location.hash.split("/");
  try {
    const parts = kind === "process" && /^\d+$/.test(pid) ? await processView(pid, site) : await overview();
    await showDaemon();
    if (mine !== turn) return;
    view.replaceChildren(...parts);
    state.className = "";
    state.textContent = "as of " + new Date().toLocaleTimeString();
    const detail = document.getElementById("site");
    if (detail && !isRefresh) detail.scrollIntoView({ block: "nearest" });
  } catch (error) {
    if (mine === turn) fail(error);
  }
}

// The list refreshes itself; a process does not, so that a flame graph is not drawn away under the pointer.
setInterval(() => {
  if (!document.hidden && !location.hash.startsWith("#/process/")) show(true);
}, REFRESH_MS);
addEventListener("hashchange", () => show(false));
document.addEventListener("visibilitychange", () => { if (!document.hidden && !location.hash.startsWith("#/process/")) show(true); });
show(false);
