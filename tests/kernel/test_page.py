"""The page in a real browser: it loads, names the leaking function, opens the flame graph, logs no errors."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .machine import cannot_run
from .ports import free_port
from .waiting import wait_until

# Without these options Chromium opens connections by itself.
_QUIET = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--window-size=1280,1400",
)


class Browser:
    """Chromium, driven by ChromeDriver's HTTP interface (https://www.w3.org/TR/webdriver2/)."""

    def __init__(self, port: int, profile: Path) -> None:
        self._base = f"http://127.0.0.1:{port}"
        capabilities = {
            "goog:chromeOptions": {"args": [*_QUIET, f"--user-data-dir={profile}"]},
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        answer = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": capabilities}})
        self._session = f"/session/{answer['sessionId']}"

    def open(self, url: str) -> None:
        self._ask("POST", f"{self._session}/url", {"url": url})

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        return self._ask("POST", f"{self._session}/execute/sync", {"script": f"return {script};", "args": []})

    def text(self) -> str:
        return self.run("document.body.innerText")

    def errors(self) -> list[str]:
        """New console messages since the last call."""
        entries = self._ask("POST", f"{self._session}/se/log", {"type": "browser"})
        return [entry["message"] for entry in entries if entry["level"] in ("SEVERE", "WARNING")]

    def screenshot(self) -> bytes:
        return base64.b64decode(self._ask("GET", f"{self._session}/screenshot"))

    def size(self, width: int, height: int = 1400) -> None:
        """Make the window's content so large."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._chrome("Emulation.setDeviceMetricsOverride", metrics)

    def scheme(self, name: str) -> None:
        """The user's preference: light or dark."""
        features = [{"name": "prefers-color-scheme", "value": name}]
        self._chrome("Emulation.setEmulatedMedia", {"features": features})

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._ask("DELETE", self._session)

    def _chrome(self, command: str, parameters: dict[str, Any]) -> None:
        self._ask("POST", f"{self._session}/goog/cdp/execute", {"cmd": command, "params": parameters})

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._base + path, data, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    for program in ("chromium", "chromedriver"):
        if shutil.which(program) is None:
            cannot_run(f"{program} is not installed: make setup FOR=test")
    port = free_port()
    driver = subprocess.Popen(
        ["chromedriver", f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    opened: Browser | None = None
    try:
        wait_until(lambda: _answers(port), timeout_s=30)
        opened = Browser(port, tmp_path / "profile")
        yield opened
    finally:
        if opened:
            opened.close()
        driver.terminate()
        driver.wait(timeout=30)


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


def test_the_page_names_the_leaking_function(daemon, workload, browser):
    """From the list to the process, its call site, its stack and its flame graph."""
    program = workload("blocks")
    port = free_port()
    tracer = daemon(metrics={"enabled": True, "port": port})
    tracer.attach(program.pid)
    program.step(1)
    # Growth over time needs some time.
    tracer.tick_for_s(3)

    browser.open(f"http://127.0.0.1:{port}/")
    wait_until(lambda: "Traced processes" in browser.text())
    assert f"blocks {program.pid}" in browser.text()
    keep_picture(browser, "overview.png")

    browser.run("document.querySelector('tr[data-href]').click()")
    wait_until(lambda: "Call sites" in browser.text())
    wait_until(lambda: "checked_malloc" in browser.text())
    assert "20.0 MiB" in browser.text()
    assert "metrics.details: true" in browser.text()
    wait_until(lambda: browser.run("document.querySelectorAll('#chart rect').length") > 5)
    frames = browser.run("[...document.querySelectorAll('.d3-flame-graph-label')].map(l => l.textContent)")
    assert {"guilty", "checked_malloc"} <= set(frames)

    browser.run(
        "[...document.querySelectorAll('tr[data-href]')].find(r => r.innerText.includes('MiB')).click()"
    )
    wait_until(lambda: "use_the_wrapper" in browser.run("document.querySelector('.stack')?.innerText || ''"))
    wait_until(lambda: browser.run("document.querySelectorAll('#chart rect').length") > 5)
    time.sleep(0.5)
    keep_picture(browser, "process.png")
    assert browser.errors() == []

    browser.open(f"http://127.0.0.1:{port}/flamegraph?pid={program.pid}")
    wait_until(lambda: browser.run("document.querySelectorAll('#chart rect').length") > 5)
    browser.run(
        "(box => { box.value = 'guilty'; box.dispatchEvent(new Event('input')); })"
        "(document.getElementById('search'))"
    )
    wait_until(lambda: "%" in browser.run("document.getElementById('found').textContent"))
    assert browser.errors() == []


def test_the_page_shows_call_sites_that_open_descriptors(daemon, workload, browser):
    """How many are open, by which call sites, and with which stack; all add up."""
    program = workload("opening")
    port = free_port()
    tracer = daemon(metrics={"enabled": True, "port": port}, descriptors={"call_sites": "always"})
    tracer.attach(program.pid)
    wait_until(lambda: tracer.events("descriptors.recorded"), 10)
    program.step(1)
    wait_until(lambda: tracer.top(program.pid)["descriptor_sites"], 20)

    browser.open(f"http://127.0.0.1:{port}/#/process/{program.pid}")
    wait_until(lambda: "Call sites with open file descriptors" in browser.text(), 20)
    wait_until(lambda: "by_eventfd" in browser.text())
    assert "opened by call sites" in browser.text()
    report = browser.run(f"fetch('v1/processes/{program.pid}/sites').then(answer => answer.json())")
    assert report["descriptor_sites"]
    frames = [frame for site in report["descriptor_sites"] for frame in site["stack"]]
    assert {frame["address"] for frame in frames} == {0}, "anybody can read it at this address"
    row = "[...document.querySelectorAll('tr[data-href]')].find(r => r.innerText.includes('by_eventfd'))"
    browser.run(f"{row}.click()")
    wait_until(lambda: "open_all" in browser.run("document.querySelector('.stack')?.innerText || ''"))
    assert_readable(browser)
    keep_picture(browser, "descriptors.png")
    assert browser.errors() == []


ACCESSIBILITY = (Path(__file__).parent / "accessibility.js").read_text()
WIDTHS = (375, 768, 1280, 2000)


def test_it_is_readable_on_every_screen(daemon, workload, browser):
    """Light and dark, from a telephone to a large screen: nothing is cut off, all can be read."""
    program = workload("blocks")
    port = free_port()
    tracer = daemon(metrics={"enabled": True, "port": port, "details": True})
    tracer.attach(program.pid)
    program.step(1)
    tracer.tick_for_s(2)
    base = f"http://127.0.0.1:{port}/"
    browser.open(f"{base}#/process/{program.pid}")
    wait_until(lambda: "Resident memory" in browser.text())
    wait_until(lambda: browser.run("document.querySelectorAll('#chart rect').length") > 5)
    for scheme in ("light", "dark"):
        browser.scheme(scheme)
        for width in WIDTHS:
            browser.size(width)
            wait_until(lambda width=width: browser.run("innerWidth") == width)
            assert_readable(browser)
            keep_picture(browser, f"process-{scheme}-{width}.png")
    browser.run("document.getElementById('pause').click()")
    assert browser.run("document.getElementById('pause').getAttribute('aria-pressed')") == "true"
    browser.open(f"{base}#/")
    wait_until(lambda: "Traced processes" in browser.text())
    for width in WIDTHS:
        browser.size(width)
        wait_until(lambda width=width: browser.run("innerWidth") == width)
        assert_readable(browser)
    assert browser.errors() == []
    # One that is not traced is marked so.
    browser.open(f"{base}#/process/{program.pid + 1_000_000}")
    wait_until(lambda: "Not available" in browser.text())


def assert_readable(browser: Browser) -> None:
    """After a change of width, the drawing appears a moment later."""
    with contextlib.suppress(AssertionError):
        wait_until(lambda: browser.run(ACCESSIBILITY) == [])
    assert browser.run(ACCESSIBILITY) == []


def keep_picture(browser: Browser, name: str) -> None:
    """For docs/: into the directory that PICTURES names, if it does."""
    if directory := os.environ.get("PICTURES"):
        (Path(directory) / name).write_bytes(browser.screenshot())
