// The page at http://127.0.0.1:9797/: traced processes, verdicts and reasons. It reads /v1 and changes nothing.
// Answers of the daemon become text, never markup: programs choose their own names.

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

// The powers of 1024 and the powers of two between them: 16, 32, 64 MiB.
const BINARY_STEPS = Array.from({ length: 60 }, (_, power) => 2 ** power);

// As the CLI has them: what the C++ library calls the types that everybody knows by other names.
const EVERYDAY_NAMES = [
  ["std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >", "std::string"],
  ["std::basic_string_view<char, std::char_traits<char> >", "std::string_view"],
  ["std::__cxx11::", "std::"],
];

function readable(name) {
  for (const [long, short] of EVERYDAY_NAMES) name = name.replaceAll(long, short);
  return name;
}

// Without its parameters, and with as many classes and namespaces, from the right, as fit.
function shortName(name, width) {
  name = readable(name);
  if (name.length <= width) return name;
  const bare = name.replace(/(?<=[^:(]|operator\(\))\([^()]*\)(?: const)?$/, "");
  if (bare.length <= width) return bare;
  const parts = bare.replace(/(?<=.)<[^<>]*(?:<[^<>]*>[^<>]*)*>/g, "<…>").split(/(?<=::|\.)/);
  let short = parts.pop();
  while (parts.length && parts.at(-1).length + short.length + 1 <= width) short = parts.pop() + short;
  return parts.length ? "…" + short : short;
}

// A name that may be broken after a namespace or a class, and nowhere else; the whole of it as a tooltip.
function nameElement(name, width = 60) {
  const pieces = shortName(name, width).split(/(?<=::|\.)/);
  return element("span", { class: "function", title: readable(name) },
    ...pieces.flatMap((piece, index) => (index ? [element("wbr"), piece] : [piece])));
}

function placeName(site) {
  return site.type || (site.location || site.module || "").split("/").pop();
}

const LIMITS = { cgroup: "its control group", "address-space": "RLIMIT_AS", data: "RLIMIT_DATA",
  host: "the machine's memory" };

function limitWords(verdict) {
  if (!verdict || !verdict.limit || !verdict.limit_reached_s) return null;
  return `${duration(verdict.limit_reached_s)} (${LIMITS[verdict.limit.kind]}, ${bytes(verdict.limit.limit_bytes)})`;
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

// Columns are [heading, class, cell of a row]; `href` of a row is where a click on it leads. The first column is
// the link, for keys and screen readers.
function table(caption, columns, rows, href) {
  const head = element("tr", {}, ...columns.map(([title, kind]) => element("th", { class: kind, scope: "col" }, title)));
  const body = rows.map((row) => {
    const target = href && href(row);
    const cells = columns.map(([title, kind, cell], index) => {
      const content = [cell(row)].flat();
      return element("td", { class: kind, "data-title": title },
        ...(target && index === 0 ? [element("a", { href: target }, ...content)] : content));
    });
    return element("tr", target ? { "data-href": target } : {}, ...cells);
  });
  return element("table", {}, element("caption", {}, caption), element("thead", {}, head), element("tbody", {}, ...body));
}

view.addEventListener("click", (event) => {
  const row = event.target.closest("tr[data-href]");
  if (row && !event.target.closest("a")) location.hash = row.dataset.href;
});

function facts(...pairs) {
  return element("ul", { class: "facts" },
    ...pairs.filter(([, value]) => value !== null && value !== undefined && value !== "")
      .map(([name, value]) => element("li", {}, name + " ", element("b", {}, value))));
}

function spark(values) {
  const space = "http://www.w3.org/2000/svg";
  const picture = document.createElementNS(space, "svg");
  picture.setAttribute("role", "img");
  picture.setAttribute("aria-label", values && values.length > 1
    ? `live bytes from ${bytes(values[0])} to ${bytes(values.at(-1))}` : "no history");
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
  document.title = "bpfleakd";
  const parts = [element("h1", {}, "Processes")];
  if (rows.length) {
    parts.push(table("Traced processes", [
      ["process", "name", (row) => [row.process.comm, element("small", {}, ` ${row.process.pid}`)]],
      ["verdict", "", (row) => badge(verdict(row) ? verdict(row).verdict : null) || "–"],
      ["leaks", "number", (row) => rate(verdict(row) ? verdict(row).leak_bytes_per_s : null)],
      ["limit reached in", "number detail", (row) => limitWords(verdict(row)) || "–"],
      ["live", "number", (row) => bytes(row.process.live_bytes)],
      ["growth", "number", (row) => rate(row.process.growth_bytes_per_s)],
      ["why", "name", (row) => verdict(row) ? verdict(row).reason : "–"],
      ["mode", "detail", (row) => row.process.mode],
      ["state", "detail", (row) => row.process.state],
      ["missed", "number detail", (row) => count(Object.values(row.losses).reduce((a, b) => a + b, 0))],
    ], rows, (row) => `#/process/${row.process.pid}`));
  } else {
    parts.push(element("p", { class: "faint" }, "No process is traced. Start with ",
      element("code", {}, "bpfleakctl attach PID"), "; processes in mode auto are traced when they grow."));
  }
  const watched = await getIfThere("v1/watched");
  const growing = watched ? watched.watched.filter((row) => row.growth_bytes_per_s > 0 || row.windows > 0) : [];
  if (growing.length) {
    parts.push(table("Watched processes that grow", [
      ["process", "name", (row) => [row.comm, element("small", {}, ` ${row.pid}`)]],
      ["state", "", (row) => row.state],
      ["memory", "number", (row) => bytes(row.anonymous_bytes)],
      ["growth", "number", (row) => rate(row.growth_bytes_per_s)],
      ["traced", "number detail", (row) => `${row.windows}×`],
      ["next in", "number detail", (row) => duration(row.next_look_s)],
      ["reason", "name detail", (row) => row.reason],
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
    ["limit reached in", limitWords(verdict)],
    ["explained", verdict && verdict.explained_share !== null ? Math.round(100 * verdict.explained_share) + " %" : null]));
  parts.push(losses(report.losses));
  for (const note of process.notes || []) parts.push(element("p", { class: "faint" }, note));

  const bySite = new Map((history ? history.sites : []).map((site) => [site.site, site.low_bytes]));
  if (history && history.ends_s.length > 1) parts.push(element("h2", {}, "Growth"), plot(history, report));
  parts.push(element("h2", {}, "Where memory is allocated"));
  parts.push(table("Call sites", [
    ["function", "name", (site) => [nameElement(site.function || "[unknown]"), " ",
      element("small", { title: [site.module, site.location].filter(Boolean).join(" ") }, placeName(site))]],
    ["verdict", "", (site) => badge(site.verdict) || "–"],
    ["leaks", "number", (site) => rate(site.leak_bytes_per_s)],
    ["live", "number", (site) => bytes(site.live_bytes)],
    ["blocks", "number detail", (site) => count(site.live_count)],
    ["growth", "number detail", (site) => rate(site.growth_bytes_per_s)],
    ["kind", "detail", (site) => site.kind],
    ["history", "detail", (site) => spark(bySite.get(site.site))],
  ], report.sites, (site) => `#/process/${pid}/site/${site.site}`));
  // An address that hides details would refuse it.
  const maps = hiddenDetails(report) || process.state !== "traced" ? null : await getIfThere(`v1/processes/${pid}/maps`);
  parts.push(...managedView(report), ...billView(maps), ...containerView(maps && maps.container));
  parts.push(...resourcesView(report, pid));
  if ((report.goroutines || []).length) parts.push(element("h2", {}, "Goroutines"), goroutineTable(report.goroutines));
  const site = report.sites.find((each) => each.site === siteWanted);
  const opening = report.descriptor_sites.find((each) => each.site === siteWanted);
  if (site) parts.push(...siteView(site));
  else if (opening) parts.push(...descriptorSiteView(opening));
  parts.push(element("h2", {}, "Flame graph"), flameSection(pid), hiddenDetails(report) || "");
  return parts;
}

// The managed heap: what collections left alive, and its types.
function managedView(report) {
  const heap = report.managed;
  const types = report.types || [];
  const parts = [];
  if (heap || types.length) parts.push(element("h2", {}, "Managed heap"));
  if (heap) {
    parts.push(element("p", { class: "verdict " + heap.verdict }, badge(heap.verdict), " ", heap.reason),
      facts(["runtime", heap.runtime], ["alive after the last collection", bytes(heap.live_bytes)],
        ["collections", count(heap.collections)], ["full", count(heap.full_collections)],
        ["growth", rate(heap.growth_bytes_per_s)]));
  }
  if (types.length) {
    parts.push(table("Types", [
      ["type", "name", (type) => nameElement(type.type)],
      ["live", "number", (type) => bytes(type.live_bytes)],
      ["objects", "number detail", (type) => count(type.live_count)],
      ["growth", "number", (type) => rate(type.growth_bytes_per_s)],
    ], types));
  }
  return parts;
}

// What resident memory consists of; only where the address serves details.
function billView(maps) {
  if (!maps) return [];
  return [element("h2", {}, "What the memory consists of"),
    maps.growth_summary ? element("p", {}, maps.growth_summary) : null,
    table("Resident memory", [
      ["kind", "name", (line) => line.kind.replace("_", " ")],
      ["bytes", "number", (line) => bytes(line.bytes)],
      ["growth", "number", (line) => rate(line.growth_bytes_per_s)],
      ["note", "name detail", (line) => line.note],
    ], maps.bill)].filter(Boolean);
}

// What the control group that limits the process is charged for.
function containerView(bill) {
  if (!bill) return [];
  return [element("h2", {}, "What the container's memory consists of"),
    facts(["control group", bill.cgroup], ["used", bytes(bill.used_bytes)], ["limit", bytes(bill.limit_bytes)]),
    bill.growth_summary ? element("p", {}, bill.growth_summary) : null,
    table("Memory charged to the container", [
      ["kind", "name", (line) => line.kind.replace("_", " ")],
      ["bytes", "number", (line) => bytes(line.bytes)],
      ["growth", "number", (line) => rate(line.growth_bytes_per_s)],
      ["of this process", "number", (line) => line.process_bytes === null ? "–" : bytes(line.process_bytes)],
    ], bill.lines)].filter(Boolean);
}

// File descriptors and threads that become more, and the call sites that open descriptors, while these are recorded.
function resourcesView(report, pid) {
  const growing = report.resources.filter((use) => use.growth_per_min > 0);
  const totals = report.descriptor_totals;
  if (!growing.length && !totals) return [];
  const parts = [element("h2", {}, "File descriptors and threads"),
    ...growing.map((use) => element("p", { class: "verdict " + use.verdict }, badge(use.verdict), " ", use.reason))];
  if (!totals) return parts;
  parts.push(facts(["open", count(totals.open_count)], ["opened by call sites", count(totals.recorded_count)],
    ["from before the recording", totals.earlier_count ? count(totals.earlier_count) : null],
    ["came otherwise", totals.other_count ? count(totals.other_count) : null]));
  if (totals.other_reason) parts.push(element("p", {}, totals.other_reason));
  if (report.descriptor_sites.length) {
    parts.push(table("Call sites with open file descriptors", [
      ["function", "name", (site) => [nameElement(site.function || "[unknown]"), " ", element("small", {}, placeName(site))]],
      ["verdict", "", (site) => badge(site.verdict) || "–"],
      ["growth", "number", (site) => site.growth_per_min ? `+${count(site.growth_per_min)}/min` : "–"],
      ["open", "number", (site) => count(site.open_count)],
      ["opened", "number detail", (site) => count(site.opened_count)],
      ["they are", "name", (site) => shareWords(site.shares) || "–"],
    ], report.descriptor_sites, (site) => `#/process/${pid}/site/${site.site}`));
  }
  return parts;
}

function shareWords(shares) {
  return shares.map((share) => `${Math.round(100 * share.share)} % ${share.what}`).join(", ");
}

function goroutineTable(groups) {
  return table("Goroutines by where they were started", [
    ["verdict", "", (group) => badge(group.verdict) || "–"],
    ["started at", "name", (group) => [group.started_in || "?", " ", element("small", {}, group.started_at || "")]],
    ["run", "name", (group) => group.function || "?"],
    ["goroutines", "number", (group) => count(group.count)],
    ["more in", "number", (group) => `${group.grown_count < 0 ? "" : "+"}${group.grown_count} ${duration(group.grown_in_s)}`],
    ["stacks", "number", (group) => bytes(group.stack_bytes)],
    ["wait for", "name", (group) => Object.entries(group.states).map(([state, n]) => `${state} ${n}`).join(", ")],
  ], groups.slice(0, SITES));
}

// Over TCP frames have the address 0, unless the configuration says otherwise.
function hiddenDetails(report) {
  const frames = [...report.sites, ...report.descriptor_sites].flatMap((site) => site.stack);
  if (!frames.length || frames.some((frame) => frame.address)) return null;
  return element("p", { class: "faint", id: "hidden" },
    "Addresses are not shown here. For blocks, code mappings and profiles use ",
    element("code", {}, `bpfleakctl report ${report.process.pid}`), ", ", element("code", {}, "maps"), " and ",
    element("code", {}, "export"), ", or set ", element("code", {}, "metrics.details: true"), ".");
}

// A frame without a name, by its place in the file, or by its address where that is shown.
function frameName(frame) {
  if (frame.function) return readable(frame.function);
  if (frame.module && frame.offset !== null) return `${frame.module.split("/").pop()}+0x${frame.offset.toString(16)}`;
  return frame.address ? "0x" + frame.address.toString(16) : "?";
}

function stackOf(site) {
  const stack = element("ol", { class: "stack" }, ...site.stack.map((frame) => element("li", {},
    frameName(frame), " ",
    element("span", { class: "place" },
      [frame.module, frame.location, frame.inlined ? "inlined" : ""].filter(Boolean).join("  ")))));
  return [stack, site.truncated ? element("p", { class: "faint" }, `The stack is cut: ${site.truncated}.`) : null];
}

function descriptorSiteView(site) {
  return [
    element("h2", { id: "site" }, nameElement(site.function || "[unknown]", 200), " ", badge(site.verdict) || ""),
    facts(["site", site.site], ["open", count(site.open_count)], ["opened", count(site.opened_count)],
      ["oldest open for", duration(site.oldest_age_s)], ["they are", shareWords(site.shares)]),
    ...stackOf(site),
  ].filter(Boolean);
}

function siteView(site) {
  const threads = site.threads.map((t) => `${t.comm || "?"} (${t.tid}) ${bytes(t.live_bytes)}`).join(", ");
  const types = site.types.map((t) => `${t.type} ${Math.round(100 * t.share)} %`).join(", ");
  const reached = site.scanned_age_s === null ? null :
    `${{ true: "yes", false: "no" }[site.reachable] || "partly"} (scan ${duration(site.scanned_age_s)} ago)`;
  return [
    element("h2", { id: "site" }, nameElement(site.function || "[unknown]", 200), " ", badge(site.verdict) || ""),
    site.reason ? element("p", { class: "verdict " + site.verdict },
      `${site.reason} (confidence ${Math.round(100 * site.confidence)} %)`) : null,
    facts(["site", site.site], ["allocated", bytes(site.allocated_bytes)], ["peak", bytes(site.peak_live_bytes)],
      ["oldest block", duration(site.oldest_age_s)], ["still pointed to", reached], ["objects", types], ["threads", threads]),
    ...stackOf(site),
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

// Functions of one name are told apart by their line.
function lineLabel(site, report) {
  const shown = report.sites.find((each) => each.site === site.site);
  const name = shortName(site.function || "[unknown]", 40);
  return shown && shown.location ? `${name} ${shown.location.split("/").pop()}` : name;
}

function clock(time_s) {
  return new Date(1000 * time_s).toTimeString().slice(0, 8);
}

const COLOURS = ["#d1495b", "#2e86ab", "#c98a1b", "#5b8c5a", "#8e6bbf", "#8a817c"];
const DENSE = 60;
let logarithmic = false;

function plot(history, report) {
  const place = element("div", { class: "plot", id: "growth", role: "img",
    "aria-label": "live bytes of the largest call sites, and of all together, over time" });
  const lines = history.sites.map((site) => ({ site, most: Math.max(...site.low_bytes, 0) }))
    .filter((line) => line.most > 0).sort((a, b) => b.most - a.most).slice(0, COLOURS.length);
  const total = history.ends_s.map((_, bin) => history.sites.reduce((sum, site) => sum + (site.low_bytes[bin] || 0), 0));
  const style = getComputedStyle(document.body);
  const axis = { stroke: style.color, grid: { stroke: "#8883", width: 1 } };
  const began_s = Date.now() / 1000 - report.process.attached_s;
  const times = history.ends_s.map((end) => began_s + end);
  // Dense lines have no markers; a logarithm has no zero.
  const points = { show: times.length <= DENSE };
  const values = (low) => (logarithmic ? low.map((value) => (value > 0 ? value : null)) : low);
  const value = (_, size) => bytes(size);
  const draw = () => {
    place.replaceChildren();
    const chart = new uPlot({
      width: Math.max(240, place.clientWidth), height: 260,
      scales: { y: logarithmic ? { distr: 3, log: 2 } : { range: (_, __, most) => [0, Math.max(most * 1.05, 1)] } },
      axes: [{ ...axis, space: 90, values: (_, marks) => marks.map(clock) },
        { ...axis, size: 78, incrs: BINARY_STEPS, values: (_, marks) => marks.map((mark) => (mark === null ? "" : bytes(mark))) }],
      series: [{ label: "time", value: (_, time) => (time ? clock(time) : "–") },
        { label: "all call sites", stroke: style.color, dash: [6, 4], width: 1, points, value },
        ...lines.map((line, index) => ({
          label: lineLabel(line.site, report), stroke: COLOURS[index], width: 2, points, value }))],
    }, [times, values(total), ...lines.map((line) => values(line.site.low_bytes))], place);
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

function flameSection(pid) {
  const section = element("section", { id: "flames" });
  const choice = element("select", { "aria-label": "value that the widths show" },
    ...Object.entries(VALUES).map(([value, words]) => element("option", { value }, words)));
  const box = element("div", {});
  const link = element("a", { target: "_blank" }, "in a new page");
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

// A view that was requested while another was being made is the one that is shown.
let turn = 0;
let paused = false;
let shown = "";

async function show(isRefresh) {
  const mine = ++turn;
  const hash = location.hash;
  const [, kind, pid, , site] = hash.split("/");
  try {
    const parts = kind === "process" && /^\d+$/.test(pid) ? await processView(pid, site) : await overview();
    await showDaemon();
    if (mine !== turn) return;
    // A refresh leaves the flame graph as it is, with its zoom and its search.
    const flames = isRefresh && hash === shown ? document.getElementById("flames") : null;
    view.replaceChildren(...parts.map((part) => (flames && part.id === "flames" ? flames : part)));
    shown = hash;
    state.className = "";
    state.textContent = "as of " + new Date().toLocaleTimeString();
    const detail = document.getElementById("site");
    if (detail && !isRefresh) detail.scrollIntoView({ block: "nearest" });
  } catch (error) {
    if (mine !== turn) return;
    fail(error);
    // What was shown of it stays; where nothing was, the reason takes its place.
    if (hash !== shown) {
      view.replaceChildren(element("h1", {}, "Not available"), element("p", { class: "loss" }, error.message || String(error)),
        element("p", {}, element("a", { href: "#/" }, "← all processes")));
    }
  }
}

const pause = document.getElementById("pause");
pause.addEventListener("click", () => {
  paused = !paused;
  pause.setAttribute("aria-pressed", String(paused));
  pause.textContent = paused ? "continue" : "pause";
});
document.getElementById("refresh").addEventListener("click", () => show(true));
const refresh = () => { if (!document.hidden && !paused) show(true); };
setInterval(refresh, REFRESH_MS);
addEventListener("hashchange", () => show(false));
document.addEventListener("visibilitychange", refresh);
show(false);
