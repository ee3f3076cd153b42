"""Draws Grafana's dashboards from live data, for docs: `draw.py [--for SECONDS] [DIRECTORY]`, as root.

A daemon traces the service of examples/leaky-service, Prometheus scrapes it and is asked each panel's
expression, and Grafana's own components (@grafana/ui) draw the answers in Chromium. What npm brings is put
into build/, and nothing of it into the repository. Needs npm and pngquant, besides `make setup FOR=test`.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import json
import re
import shutil
import subprocess
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.tracing import RunningDaemon, ended_with_us, free_port
from tests.kernel.prometheus_server import PrometheusServer

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
DASHBOARDS = ROOT / "deploy/grafana/dashboards"
BUILD = ROOT / "build/dashboard-pictures"

# What Grafana puts in place of its variables.
VARIABLES = {"instance": ".*", "comm": "order_service", "__rate_interval": "10s"}
STEP_S = 1
WIDTH = 1280
CELL, GAP, PADDING = 30, 8, 12  # as in page.jsx
PAGE = """<!doctype html><meta charset="utf-8"><link rel="stylesheet" href="page.css">
<div id="dashboard"></div>
<script>window.scene = {scene}; window.__grafana_public_path__ = "/";</script>
<script type="module" src="page.js"></script>
"""


def main() -> None:
    """Trace, scrape, ask, draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--for", dest="seconds", type=float, default=120, help="how long to trace (%(default)s)"
    )
    parser.add_argument("directory", type=Path, nargs="?", default=ROOT / "docs/pictures")
    arguments = parser.parse_args()
    bundle()
    with service() as pid, tempfile.TemporaryDirectory() as scratch:
        port = free_port()
        with RunningDaemon(metrics={"enabled": True, "port": port}) as daemon:
            prometheus = PrometheusServer(Path(scratch), [f"127.0.0.1:{port}"])
            try:
                began_s = time.time()
                daemon.client.attach(pid)
                time.sleep(arguments.seconds)
                for path in sorted(DASHBOARDS.glob("*.json")):
                    dashboard = json.loads(path.read_text())
                    write_page(path.stem, dashboard, prometheus, began_s)
                    picture(path.stem, dashboard, arguments.directory / f"grafana-{path.stem}.png")
            finally:
                prometheus.stop()


def bundle() -> None:
    """Build page.js, once for each version of what it is made of."""
    BUILD.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "page.jsx"):
        shutil.copy(HERE / name, BUILD)
    run(
        "npm",
        "install",
        "--legacy-peer-deps",
        "--ignore-scripts",
        "--no-audit",
        "--no-fund",
        "--loglevel=error",
    )
    run(
        "node_modules/.bin/esbuild",
        "page.jsx",
        "--bundle",
        "--format=esm",
        "--jsx=automatic",
        "--loader:.ttf=dataurl",
        "--outfile=page.js",
        "--log-level=error",
        '--define:process.env.NODE_ENV="production"',
    )
    shutil.copytree(BUILD / "node_modules/@grafana/ui/dist/public", BUILD / "public", dirs_exist_ok=True)


def run(*command: str) -> None:
    """Run a command in the build directory."""
    subprocess.run(command, cwd=BUILD, check=True)


@contextmanager
def service() -> Iterator[int]:
    """The service that leaks, until the block ends. Its paths say nothing of this machine."""
    example = ROOT / "examples/leaky-service"
    with tempfile.TemporaryDirectory(prefix="shop-") as place:
        compiler = f"CXX=g++ -ffile-prefix-map={example}=/usr/src/shop"
        subprocess.run(["make", "--silent", "-C", example, f"BUILD={place}", compiler], check=True)
        process = subprocess.Popen(ended_with_us(Path(place) / "order_service"), stdout=subprocess.DEVNULL)
        try:
            yield process.pid
        finally:
            process.terminate()
            process.wait()


def write_page(name: str, dashboard: dict[str, Any], prometheus: PrometheusServer, began_s: float) -> None:
    """Write the page of one dashboard, with the answers to all its queries."""
    now_s = time.time()
    answers = {
        panel["id"]: [answer(prometheus, target, began_s, now_s) for target in panel["targets"]]
        for panel in dashboard["panels"]
    }
    empty = [panel["title"] for panel in dashboard["panels"] if not any(answers[panel["id"]])]
    if empty:
        print(f"{name}: no data in {', '.join(empty)}")
    scene = {
        "dashboard": dashboard,
        "answers": answers,
        "from_ms": began_s * 1e3,
        "to_ms": now_s * 1e3,
        "mode": "light",
    }
    (BUILD / f"{name}.html").write_text(PAGE.replace("{scene}", json.dumps(scene).replace("</", "<\\/")))


def answer(prometheus: PrometheusServer, target: dict[str, Any], began_s: float, now_s: float) -> list[dict]:
    """The frames of one query, as Grafana's data source for Prometheus makes them."""
    expression = re.sub(r"\$(\w+)", lambda match: VARIABLES[match[1]], target["expr"])
    if target.get("instant"):
        return [table(prometheus.query(expression))]
    found = prometheus.get(
        "query_range", query=expression, start=str(began_s), end=str(now_s), step=str(STEP_S)
    )
    return [
        {
            "name": legend(target.get("legendFormat", ""), series["metric"]),
            "times_ms": [at * 1e3 for at, _ in series["values"]],
            "values": [float(value) for _, value in series["values"]],
        }
        for series in found["result"]
    ]


def legend(text: str, labels: dict[str, str]) -> str:
    """What stands beside a line."""
    return " ".join(re.sub(r"\{\{(\w+)\}\}", lambda match: labels.get(match[1], ""), text).split())


def table(rows: list[dict]) -> dict[str, Any]:
    """A column for each label, and the value."""
    names = sorted({name for row in rows for name in row["metric"]})
    columns: list[dict[str, Any]] = [
        {"name": "Time", "type": "time", "values": [row["value"][0] * 1e3 for row in rows]}
    ]
    for name in names:
        columns.append(
            {"name": name, "type": "string", "values": [row["metric"].get(name, "") for row in rows]}
        )
    columns.append({"name": "Value", "type": "number", "values": [float(row["value"][1]) for row in rows]})
    return {"columns": columns}


def picture(name: str, dashboard: dict[str, Any], path: Path) -> None:
    """Have Chromium draw it."""
    bottom = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in dashboard["panels"])
    height = bottom * (CELL + GAP) - GAP + 2 * PADDING
    handler = functools.partial(QuietHandler, directory=str(BUILD))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/{urllib.parse.quote(name)}.html"
        subprocess.run(
            [
                "chromium",
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
                "--disable-background-networking",
                f"--window-size={WIDTH},{height}",
                "--virtual-time-budget=20000",
                f"--screenshot={path}",
                url,
            ],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        server.shutdown()
    subprocess.run(["pngquant", "--force", "--output", path, "64", path], check=True)
    print(f"{path}: {path.stat().st_size / 1e3:.0f} kB")


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """Serves the build directory, without a line for each file."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""


if __name__ == "__main__":
    main()
