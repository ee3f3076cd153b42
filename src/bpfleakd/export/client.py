"""prometheus_client, imported without its web server and its push client.

They import TLS, HTTP, mail and HTML: 6 MB of the 64 MB that the daemon may have resident. bpfleakd uses the
metric families, the registry and the text formats only. So while prometheus_client is imported, empty modules
stand for what these parts need.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

_ABSENT = ("ssl", "http.server", "urllib.request", "wsgiref.simple_server")


class _Absent(ModuleType):
    """Every attribute is `object`: classes derive from some, default arguments name others."""

    def __getattr__(self, _name: str) -> type:
        return object


_stand_ins = {name: _Absent(name) for name in _ABSENT if name not in sys.modules}
sys.modules.update(_stand_ins)
try:
    importlib.import_module("prometheus_client")
except (ImportError, AttributeError, TypeError):
    # A version that needs more of these modules is imported whole, below.
    for _name in [name for name in sys.modules if name.partition(".")[0] == "prometheus_client"]:
        del sys.modules[_name]
finally:
    for _name in _stand_ins:
        del sys.modules[_name]

from prometheus_client import CollectorRegistry, Histogram, ProcessCollector  # noqa: E402
from prometheus_client import generate_latest as as_plain_text  # noqa: E402
from prometheus_client.core import (  # noqa: E402
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4 as PLAIN_TYPE  # noqa: E402
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST as OPENMETRICS_TYPE  # noqa: E402
from prometheus_client.openmetrics.exposition import generate_latest as as_openmetrics  # noqa: E402
from prometheus_client.registry import Collector  # noqa: E402
