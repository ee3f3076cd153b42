"""A real Prometheus that scrapes."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .machine import need_tool
from .ports import free_port
from .waiting import wait_until

_HEALTHY_TIMEOUT_S = 20.0


class PrometheusServer:
    """Debian's Prometheus, scraping `targets` every second; `rules` are files of rules. `stop()` ends it.

    `profiles`: it also asks the first target for processes, whose profiles it then scrapes, in vain.
    """

    def __init__(self, directory: Path, targets: Sequence[str], *rules: Path, profiles: bool = False) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self._log = (directory / "prometheus.log").open("wb")
        discovery = {"url": f"http://{targets[0]}/v1/targets", "refresh_interval": "1s"}
        of_processes = {
            "job_name": "profiles",
            "metrics_path": "/debug/pprof/heap",
            "http_sd_configs": [discovery],
        }
        config = directory / "prometheus.json"  # JSON is YAML
        config.write_text(
            json.dumps(
                {
                    "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                    "rule_files": [str(path) for path in rules],
                    "scrape_configs": [
                        {"job_name": "bpfleakd", "static_configs": [{"targets": [*targets]}]},
                        *([of_processes] if profiles else []),
                    ],
                }
            )
        )
        self._process = subprocess.Popen(
            [
                need_tool("prometheus"),
                f"--config.file={config}",
                f"--storage.tsdb.path={directory / 'tsdb'}",
                f"--web.listen-address={self.address}",
            ],
            stdout=self._log,
            stderr=self._log,
        )
        wait_until(self._is_ready, _HEALTHY_TIMEOUT_S)

    def get(self, path: str, **parameters: str) -> Any:
        """The data of an answer of its API; fails if that is an error."""
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {json.load(error)['error']}") from None

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The result of an expression, now: samples with `metric` and `value`."""
        return self.get("query", query=expression)["result"]

    def value(self, expression: str) -> float:
        """The value of an expression that has one."""
        (sample,) = self.query(expression)
        return float(sample["value"][1])

    def stop(self) -> None:
        """End it."""
        self._process.terminate()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, "Prometheus has ended"
        try:
            urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=5).close()
        except OSError:
            return False
        return True
