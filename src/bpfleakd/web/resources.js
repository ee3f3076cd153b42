// File descriptors, threads and goroutines of a process.

import { badge, element, facts, headline, table } from "./elements.js";
import { bytes, count, duration, placeName, shareWords } from "./words.js";

const GROUPS = 50;

// Growing file descriptors and threads, and the call sites that open descriptors, while these are recorded.
export function resourcesView(report, pid) {
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
      ["function", "name", (site) => [headline(site), " ", element("small", {}, placeName(site))]],
      ["verdict", "", (site) => badge(site.verdict) || "–"],
      ["growth", "number", (site) => site.growth_per_min ? `+${count(site.growth_per_min)}/min` : "–"],
      ["open", "number", (site) => count(site.open_count)],
      ["opened", "number detail", (site) => count(site.opened_count)],
      ["they are", "name", (site) => shareWords(site.shares) || "–"],
    ], report.descriptor_sites, (site) => `#/process/${pid}/site/${site.site}`));
  }
  return parts;
}

export function goroutineTable(groups) {
  return table("Goroutines by where they were started", [
    ["verdict", "", (group) => badge(group.verdict) || "–"],
    ["started at", "name", (group) => [group.started_in || "?", " ", element("small", {}, group.started_at || "")]],
    ["run", "name", (group) => group.function || "?"],
    ["goroutines", "number", (group) => count(group.count)],
    ["more in", "number", (group) => `${group.grown_count < 0 ? "" : "+"}${group.grown_count} ${duration(group.grown_in_s)}`],
    ["stacks", "number", (group) => bytes(group.stack_bytes)],
    ["wait for", "name", (group) => Object.entries(group.states).map(([state, n]) => `${state} ${n}`).join(", ")],
  ], groups.slice(0, GROUPS));
}
