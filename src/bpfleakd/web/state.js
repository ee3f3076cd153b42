// The words in the page's bar: as of when it is, or what failed.

const state = document.getElementById("state");

export function showTime() {
  state.className = "";
  state.textContent = "as of " + new Date().toLocaleTimeString();
}

export function showFailure(error) {
  state.className = "broken";
  state.textContent = error.message || String(error);
}
