// Elements of views. Answers of the daemon become text, never markup.

import { LOSSES } from "./losses.js";
import { bytes, count, readable, shortName } from "./words.js";

export function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export function badge(verdict) {
  return verdict ? element("span", { class: "badge " + verdict }, verdict) : null;
}

// A name that may only be broken after a namespace or a class, with the complete name as a tooltip.
export function nameElement(name, width = 60) {
  const pieces = shortName(name, width).split(/(?<=::|\.)/);
  return element("span", { class: "function", title: readable(name) },
    ...pieces.flatMap((piece, index) => (index ? [element("wbr"), piece] : [piece])));
}

// A call site's name: "order → xmlNewDoc", where the program's own function called that of a library.
export function headline(site, width = 60) {
  const unnamed = site.called_by && site.module ? site.module.split("/").pop() : "[unknown]";
  const charged = nameElement(site.function || unnamed, width);
  if (!site.called_by) return charged;
  return element("span", {}, nameElement(site.called_by.function || site.called_by.module || "?", width), " → ", charged);
}

// Columns are [heading, class, cell of a row]; `href` of a row is where a click on it leads. The first column is
// the link, for keys and screen readers.
export function table(caption, columns, rows, href) {
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

// Long and rarely needed content; a refresh of the view leaves it open.
const opened = new Set();

export function folded(words, content) {
  const made = element("details", opened.has(words) ? { open: "" } : {}, element("summary", {}, words), content);
  made.addEventListener("toggle", () => (made.open ? opened.add(words) : opened.delete(words)));
  return made;
}

export function facts(...pairs) {
  return element("ul", { class: "facts" },
    ...pairs.filter(([, value]) => value !== null && value !== undefined && value !== "")
      .map(([name, value]) => element("li", {}, name + " ", element("b", {}, value))));
}

// `values` belong to bins of time that end at `ends_s`; older bins are longer.
export function spark(values, ends_s) {
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
    const at = (index) => (100 * (ends_s[index] - ends_s[0])) / (ends_s.at(-1) - ends_s[0]);
    const path = document.createElementNS(space, "path");
    path.setAttribute("d", "M" + values.map((v, i) => `${at(i).toFixed(1)} ${(19 - 18 * v / most).toFixed(1)}`)
      .join("L"));
    path.setAttribute("vector-effect", "non-scaling-stroke");
    picture.append(path);
  }
  return picture;
}

export function losses(all) {
  const seen = Object.entries(all || {}).filter(([, number]) => number > 0);
  if (!seen.length) return element("p", { class: "faint" }, "Nothing was missed.");
  return element("ul", { class: "loss" },
    ...seen.map(([why, n]) => element("li", {}, `missed: ${count(n)} ${LOSSES[why] || why.replaceAll("_", " ")}`)));
}

// What is drawn needs a width and its place in the document, which a view gets when all of it is there.
export function whenShown(place, draw) {
  new ResizeObserver((_, observer) => {
    if (place.clientWidth > 0) {
      observer.disconnect();
      draw();
    }
  }).observe(place);
}
