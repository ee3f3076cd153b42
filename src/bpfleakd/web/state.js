// The text in the page's bar: the time of the data, or the error.

import { clock } from "./words.js";

const state = document.getElementById("state");

export function showTime() {
  state.className = "";
  state.textContent = "as of " + clock(Date.now() / 1000);
}

export function showFailure(error) {
  state.className = "broken";
  state.textContent = error.message || String(error);
}
