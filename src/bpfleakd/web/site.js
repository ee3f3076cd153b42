// The view of one call site, with its stack.

import { badge, element, facts, headline } from "./elements.js";
import { bytes, count, duration, readable, shareWords } from "./words.js";

export function siteView(site) {
  const threads = site.threads.map((t) => `${t.comm || "?"} (${t.tid}) ${bytes(t.live_bytes)}`).join(", ");
  const types = site.types.map((t) => `${t.type} ${Math.round(100 * t.share)}%`).join(", ");
  const reached = site.scanned_age_s === null ? null :
    `${{ true: "yes", false: "no" }[site.reachable] || "partly"} (scan ${duration(site.scanned_age_s)} ago)`;
  return [
    element("h2", { id: "site" }, headline(site, 200), " ", badge(site.verdict) || ""),
    site.reason ? element("p", { class: "verdict " + site.verdict },
      `${site.reason} (confidence ${Math.round(100 * site.confidence)}%)`) : null,
    facts(["site", site.site], ["allocated", bytes(site.allocated_bytes)], ["peak", bytes(site.peak_live_bytes)],
      ["oldest block", duration(site.oldest_age_s)], ["still pointed to", reached], ["objects", types], ["threads", threads]),
    ...stackOf(site),
  ].filter(Boolean);
}

export function descriptorSiteView(site) {
  return [
    element("h2", { id: "site" }, headline(site, 200), " ", badge(site.verdict) || ""),
    facts(["site", site.site], ["open", count(site.open_count)], ["opened", count(site.opened_count)],
      ["oldest open for", duration(site.oldest_age_s)], ["they are", shareWords(site.shares)]),
    ...stackOf(site),
  ].filter(Boolean);
}

function stackOf(site) {
  const stack = element("ol", { class: "stack" }, ...site.stack.map((frame) => element("li", {},
    frameName(frame), " ",
    element("span", { class: "place" },
      [frame.module, frame.location, frame.inlined ? "inlined" : ""].filter(Boolean).join("  ")))));
  return [stack, site.truncated ? element("p", { class: "faint" }, `The stack is cut: ${site.truncated}.`) : null];
}

// A frame without a name, by its place in the file, or by its address if that is shown.
function frameName(frame) {
  if (frame.function) return readable(frame.function);
  if (frame.module && frame.offset !== null) return `${frame.module.split("/").pop()}+0x${frame.offset.toString(16)}`;
  return frame.address ? "0x" + frame.address.toString(16) : "?";
}
