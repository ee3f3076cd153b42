(() => {
  // What of a page a screen reader, or a reader with weak eyes, would miss (WCAG 2.2: 1.1.1, 1.3.1, 1.4.3, 1.4.10, 4.1.2).
  const problems = [];
  const shown = (element) => element.checkVisibility() && element.getClientRects().length > 0;
  const excerpt = (element) => element.outerHTML.slice(0, 90);

  for (const element of document.querySelectorAll("a[href], button, input, select")) {
    const labels = [...(element.labels || [])].map((label) => label.textContent).join("");
    const name = element.getAttribute("aria-label") || element.textContent || labels;
    if (shown(element) && !name.trim()) problems.push(`no name: ${excerpt(element)}`);
  }
  for (const picture of document.querySelectorAll("img, [role=img]")) {
    if (!picture.getAttribute("aria-label")) problems.push(`no description: ${excerpt(picture)}`);
  }
  const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
  for (const id of new Set(ids)) {
    if (ids.filter((other) => other === id).length > 1) problems.push(`id ${id} is there twice`);
  }
  let level = 0;
  for (const heading of document.querySelectorAll("h1, h2, h3")) {
    const next = Number(heading.tagName[1]);
    if (next > level + 1) problems.push(`heading level ${next} after ${level}: ${excerpt(heading)}`);
    level = next;
  }
  for (const table of document.querySelectorAll("main table:not(.u-legend)")) {
    if (!table.caption || !table.caption.textContent) problems.push(`no caption: ${excerpt(table)}`);
    if (table.querySelector("th:not([scope])")) problems.push(`no scope: ${excerpt(table)}`);
  }
  if (!document.documentElement.lang) problems.push("no language");
  if (!document.querySelector("main")) problems.push("no main landmark");

  const colour = (text) => {
    const [red, green, blue, alpha = 1] = text.match(/[\d.]+/g).map(Number);
    return { rgb: [red, green, blue], alpha };
  };
  const luminance = (rgb) => rgb
    .map((part) => part / 255)
    .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
    .reduce((sum, part, index) => sum + part * [0.2126, 0.7152, 0.0722][index], 0);
  const background = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const behind = colour(getComputedStyle(at).backgroundColor);
      if (behind.alpha === 1) return behind.rgb;
    }
    return [255, 255, 255];
  };
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    // Labels of the flame graph are dark on light colours that its own script chooses.
    if (!texts.currentNode.data.trim() || !shown(element) || element.closest("#chart, script, style, svg")) continue;
    const style = getComputedStyle(element);
    const size = parseFloat(style.fontSize);
    const needed = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700) ? 3 : 4.5;
    const [light, dark] = [luminance(colour(style.color).rgb), luminance(background(element))].sort((a, b) => b - a);
    const contrast = (light + 0.05) / (dark + 0.05);
    if (contrast < needed) problems.push(`contrast ${contrast.toFixed(2)}: ${texts.currentNode.data.trim().slice(0, 40)}`);
  }
  const wider = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  if (wider > 0) problems.push(`${wider} pixels wider than the screen`);
  return [...new Set(problems)];
})()
