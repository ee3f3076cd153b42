"""prometheus_client, imported without TLS.

Its web server and its push client import ssl, and with it OpenSSL: 4 MB of the 64 MB that the daemon may have
resident. bpfleakd uses the metric families, the registry and the text formats only, and speaks HTTPS to
nobody. So an empty module replaces ssl during the import of prometheus_client, http.client and
urllib.request.
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
    """Every attribute is None, for default arguments and annotations."""

    def __getattr__(self, _name: str) -> None:
        return None


if "ssl" not in sys.modules:
    sys.modules["ssl"] = _NoTls("ssl")
    try:
        importlib.import_module("prometheus_client")
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
