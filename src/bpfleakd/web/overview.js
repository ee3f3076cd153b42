// The view of all processes: those that are traced, and those that are watched and grow.

import { get, getIfThere } from "./api.js";
import { badge, element, table } from "./elements.js";
import { bytes, count, duration, leakRate, limitWords, rate } from "./words.js";

const SEVERITY = ["leak", "growing", "unknown", "plateau", "churn", "steady"];

export async function overview() {
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
      ["leaks", "number", (row) => leakRate(verdict(row))],
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
