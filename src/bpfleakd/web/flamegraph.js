// Draws the tree of export/flamegraph.py. `place` is the document with the elements of flamegraph.html.
// eslint-disable-next-line no-unused-vars
function drawFlameGraph(graph, place) {
  "use strict";
  const at = (id) => place.getElementById(id);
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  const kinds = {
    program: "the program", library: "libraries", jit: "run-time compiled code", allocator: "allocator, system call",
    unknown: "unknown",
  };

  function amount(number) {
    if (graph.unit === "blocks") return number.toLocaleString("en") + " blocks";
    let unit = 0;
    while (Math.abs(number) >= 1023.5 && unit < units.length - 1) {
      number /= 1024;
      unit += 1;
    }
    const text = unit === 0 ? String(Math.round(number)) : number.toPrecision(3);
    return text + " " + units[unit] + (graph.unit === "B/s" ? "/s" : "");
  }

  function share(node) {
    return graph.tree.total ? " (" + (100 * node.total / graph.tree.total).toFixed(1) + " %)" : "";
  }

  function describe(node) {
    let figures = amount(node.total) + share(node);
    if (graph.differential) figures += ", " + (node.delta >= 0 ? "+" : "−") + amount(Math.abs(node.delta));
    return [node.name, node.place, figures].filter(Boolean).join("  ·  ");
  }

  const most = Math.max(1, ...graph.tree.children.map((child) => Math.abs(child.delta)));
  function colour(entry) {
    const node = entry.data;
    if (entry.highlight) return "#ffe25c";
    if (!graph.differential) return graph.colours[node.kind] || graph.colours.unknown;
    const faded = Math.round(235 - 150 * Math.min(1, Math.abs(node.delta) / most));
    return node.delta > 0 ? `rgb(245,${faded},${faded})` : `rgb(${faded},${faded},245)`;
  }

  at("title").textContent = graph.title;
  at("subtitle").textContent = graph.subtitle;
  const box = at("chart");
  const width = () => Math.max(320, at("chart").clientWidth);
  const chart = d3.flamegraph()
    .width(width())
    .cellHeight(18)
    .minFrameSize(1)
    .transitionDuration(0)
    .sort((a, b) => a.data.name.localeCompare(b.data.name))
    .setColorMapper(colour)
    .setLabelHandler((entry) => describe(entry.data))
    .setDetailsElement(null)
    .setSearchMatch((entry, term) => {
      const wanted = term.toLowerCase();
      return (entry.data.name + " " + entry.data.place).toLowerCase().includes(wanted);
    })
    .setSearchHandler((results, sum, total) => {
      at("found").textContent = results.length
        ? `${results.length} frames, ${(100 * sum / total).toFixed(1)}%` : "nothing found";
    });
  chart.tooltip(false);
  chart.onHover((entry) => { at("details").textContent = describe(entry.data); });
  d3.select(at("chart")).datum(graph.tree).call(chart);
  chart.transitionDuration(150);

  at("search").addEventListener("input", (event) => {
    if (event.target.value) chart.search(event.target.value);
    else { chart.clear(); at("found").textContent = ""; }
  });
  at("tools").addEventListener("submit", (event) => event.preventDefault());
  at("reset").addEventListener("click", () => {
    at("search").value = "";
    at("found").textContent = "";
    chart.clear();
    chart.resetZoom();
  });
  // The page may have replaced it.
  const fit = () => {
    if (at("chart") === box) chart.width(width()).update();
    else removeEventListener("resize", fit);
  };
  addEventListener("resize", fit);

  const legend = graph.differential
    ? [["#f55555", "grew"], ["#5555f5", "shrank"]]
    : Object.entries(kinds).map(([kind, words]) => [graph.colours[kind], words]);
  for (const [fill, words] of legend) {
    const item = place.createElement("li");
    const box = place.createElement("i");
    box.style.background = fill;
    item.append(box, words);
    at("legend").append(item);
  }
  return chart;
}
