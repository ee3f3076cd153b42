// The flame graph of a process, by the selected value.

import { get } from "./api.js";
import { element, whenShown } from "./elements.js";
import { showFailure } from "./state.js";

const VALUES = { "live-bytes": "live bytes", "live-count": "live blocks", "growth": "growth",
  "allocated-bytes": "allocated bytes", "allocated-count": "allocations" };

export function flameSection(pid) {
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
  whenShown(section, () => draw().catch(showFailure));
  return section;
}
