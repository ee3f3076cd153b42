// The view of one process: verdict, growth, call sites, types, the bill, resources, flame graph.

import { get, getIfThere } from "./api.js";
import { badge, element, facts, folded, headline, losses, nameElement, spark, table } from "./elements.js";
import { flameSection } from "./flames.js";
import { growthPlot } from "./growth.js";
import { goroutineTable, resourcesView } from "./resources.js";
import { descriptorSiteView, siteView } from "./site.js";
import { bytes, count, duration, leakRate, limitWords, nearestLimitWords, placeName, rate } from "./words.js";

const SITES = 50;
const TYPES = 15;

export async function processView(pid, siteWanted) {
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
    ["limit reached in", limitWords(verdict)], ["nearest limit", nearestLimitWords(verdict)],
    ["explained", verdict && verdict.explained_share !== null ? Math.round(100 * verdict.explained_share) + "%" : null]));
  parts.push(losses(report.losses));
  for (const note of process.notes || []) parts.push(element("p", { class: "faint" }, note));

  const bySite = new Map((history ? history.sites : []).map((site) => [site.site, site.low_bytes]));
  if (history && history.ends_s.length > 1) parts.push(element("h2", {}, "Growth"), growthPlot(history, report));
  parts.push(...managedView(report), element("h2", {}, "Where memory is allocated"));
  const columns = [
    ["function", "name", (site) => [headline(site), " ",
      element("small", { title: [site.module, site.location].filter(Boolean).join(" ") }, placeName(site))]],
    ["verdict", "", (site) => badge(site.verdict) || "–"],
    ["leaks", "number", leakRate],
    ["live", "number", (site) => bytes(site.live_bytes)],
    ["blocks", "number detail", (site) => count(site.live_count)],
    ["growth", "number detail", (site) => rate(site.growth_bytes_per_s)],
    ["kind", "detail", (site) => site.kind],
    ["history", "detail", (site) => spark(bySite.get(site.site), history && history.ends_s)],
  ];
  const href = (site) => `#/process/${pid}/site/${site.site}`;
  const empty = report.sites.filter((site) => !site.live_bytes && site.verdict === "churn");
  parts.push(table("Call sites", columns, report.sites.filter((site) => !empty.includes(site)), href));
  if (empty.length) parts.push(folded("Call sites whose memory comes and goes", table("Without live memory now", columns, empty, href)));
  // An address that hides details would refuse it.
  const maps = hiddenDetails(report) || process.state !== "traced" ? null : await getIfThere(`v1/processes/${pid}/maps`);
  parts.push(...billView(maps), ...containerView(maps && maps.container));
  parts.push(...resourcesView(report, pid));
  if ((report.goroutines || []).length) parts.push(element("h2", {}, "Goroutines"), goroutineTable(report.goroutines));
  const site = report.sites.find((each) => each.site === siteWanted);
  const opening = report.descriptor_sites.find((each) => each.site === siteWanted);
  if (site) parts.push(...siteView(site));
  else if (opening) parts.push(...descriptorSiteView(opening));
  parts.push(element("h2", {}, "Flame graph"), flameSection(pid), hiddenDetails(report) || "");
  return parts;
}

// The managed heap: its live bytes after collections, and its types.
function managedView(report) {
  const heap = report.managed;
  const types = report.types || [];
  const parts = [];
  if (heap || types.length) parts.push(element("h2", {}, "Managed heap"));
  if (heap) {
    parts.push(element("p", { class: "verdict " + heap.verdict }, badge(heap.verdict), " ", heap.reason),
      facts(["runtime", heap.runtime], ...(heap.is_read
        ? [["in use", bytes(heap.live_bytes)], ["readings", count(heap.collections)]]
        : [["alive after the last collection", bytes(heap.live_bytes)], ["collections", count(heap.collections)],
          ["full", count(heap.full_collections)]]),
      ...(heap.limit_bytes === null ? [] : [["at most", bytes(heap.limit_bytes)]]), ["growth", rate(heap.growth_bytes_per_s)]));
  }
  if (types.length) {
    const columns = [
      ["type", "name", (type) => nameElement(type.type)],
      ["live", "number", (type) => bytes(type.live_bytes)],
      ["objects", "number detail", (type) => count(type.live_count)],
      ["growth", "number", (type) => rate(type.growth_bytes_per_s)],
    ];
    parts.push(table("Types", columns, types.slice(0, TYPES)));
    if (types.length > TYPES) parts.push(folded("Smaller types", table("Types, continued", columns, types.slice(TYPES))));
  }
  return parts;
}

// The bill of resident memory, if the address serves details.
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

// The charges of the control group that limits the process.
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

// Over TCP frames have the address 0, unless the configuration says otherwise.
function hiddenDetails(report) {
  const frames = [...report.sites, ...report.descriptor_sites].flatMap((site) => site.stack);
  if (!frames.length || frames.some((frame) => frame.address)) return null;
  return element("p", { class: "faint", id: "hidden" },
    "Addresses are not shown here. For blocks, code mappings and profiles use ",
    element("code", {}, `bpfleakctl report ${report.process.pid}`), ", ", element("code", {}, "maps"), " and ",
    element("code", {}, "export"), ", or set ", element("code", {}, "metrics.details: true"), ".");
}
