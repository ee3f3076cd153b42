"""prometheus_client, imported without TLS.

Its web server and its push client import ssl, and with it OpenSSL: 4 MB of the 64 MB that the daemon may
have resident. bpfleakd uses the metric families, the registry and the text formats only. While
prometheus_client is imported, an empty module stands for ssl; the standard library's HTTP modules can do
without.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

__all__ = [
    "CONTENT_TYPE_PLAIN_0_0_4",
    "Collector",
    "CollectorRegistry",
    "CounterMetricFamily",
    "GaugeMetricFamily",
    "Histogram",
    "InfoMetricFamily",
    "Metric",
    "ProcessCollector",
    "choose_encoder",
    "generate_latest",
]


class _NoTls(ModuleType):
    """Every attribute is None: default arguments and annotations name some."""

    def __getattr__(self, _name: str) -> None:
        return None


if "ssl" not in sys.modules:
    for _name, _instead in (("urllib.request", None), ("prometheus_client", _NoTls("ssl"))):
        sys.modules["ssl"] = _instead  # type: ignore[assignment]
        try:
            importlib.import_module(_name)
        finally:
            del sys.modules["ssl"]

from prometheus_client import CollectorRegistry, Histogram, ProcessCollector, generate_latest  # noqa: E402
from prometheus_client.core import (  # noqa: E402
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, choose_encoder  # noqa: E402
from prometheus_client.registry import Collector  # noqa: E402
