// The page at http://127.0.0.1:9797/: traced processes, verdicts and reasons. It reads /v1 and changes nothing.

import { get } from "./api.js";
import { element } from "./elements.js";
import { overview } from "./overview.js";
import { processView } from "./process.js";
import { showFailure, showTime } from "./state.js";
import { duration } from "./words.js";

const REFRESH_MS = 5000;
const view = document.getElementById("view");

view.addEventListener("click", (event) => {
  const row = event.target.closest("tr[data-href]");
  if (row && !event.target.closest("a")) location.hash = row.dataset.href;
});

async function showDaemon() {
  const status = await get("v1/status");
  document.getElementById("daemon").textContent =
    `${status.version} · ${status.attach_method} · up ${duration(status.uptime_s)}`;
}

// A view requested while another one is being built replaces it.
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
    showTime();
    const detail = document.getElementById("site");
    if (detail && !isRefresh) detail.scrollIntoView({ block: "nearest" });
  } catch (error) {
    if (mine !== turn) return;
    showFailure(error);
    // Its last content stays; without any, the reason is shown instead.
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
