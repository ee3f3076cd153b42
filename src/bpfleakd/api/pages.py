"""The web page, at the address of the metrics: files of the package, and flame graphs.

    GET    /                                   the page
    GET    /assets/{name}                      its scripts and styles
    GET    /flamegraph?pid=N&value=V           a flame graph as a separate page
    GET    /v1/processes/{pid}/flamegraph      the same as JSON, which the page draws

The page reads /v1 and can change nothing. It loads from nowhere else: its headers make browsers see to that.
"""

from __future__ import annotations

from functools import cache
from http import HTTPStatus

import msgspec

from bpfleakd.api.messages import Response
from bpfleakd.model.losses import LOSS_WORDS
from bpfleakd.web import asset

_TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".txt": "text/plain"}
_LOSSES = "losses.js"
_ASSETS = (
    "api.js",
    "elements.js",
    "flamegraph.css",
    "flamegraph.js",
    "flames.js",
    "growth.js",
    _LOSSES,
    "overview.js",
    "page.css",
    "page.js",
    "process.js",
    "resources.js",
    "site.js",
    "state.js",
    "words.js",
    "vendor/LICENSES.txt",
    "vendor/flamegraph.css",
    "vendor/flamegraph.js",
    "vendor/uplot.css",
    "vendor/uplot.js",
)

# Names come from traced programs: this policy makes them harmless even if one reaches the page as markup.
_PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; "
    "img-src data:"
)
# That page contains everything it needs.
_FLAMEGRAPH_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'"
_HEADERS = {"x-content-type-options": "nosniff", "referrer-policy": "no-referrer", "x-frame-options": "DENY"}


def page_response() -> Response:
    """Return the page."""
    return _html(asset("index.html"), _PAGE_POLICY)


def asset_response(name: str) -> Response | None:
    """A script or style of the page; None if there is none of that name."""
    if name not in _ASSETS:
        return None
    content_type = _TYPES["." + name.rpartition(".")[2]]
    return Response(
        _encoded(name), HTTPStatus.OK, {**_HEADERS, "content-type": content_type, "cache-control": "no-cache"}
    )


@cache
def _encoded(name: str) -> bytes:
    """Read once: a flood of requests for it costs nothing but sending."""
    if name == _LOSSES:
        # As the command line has them.
        return b"export const LOSSES = %b;\n" % msgspec.json.encode(LOSS_WORDS)
    return asset(name).encode()


def flamegraph_response(page: str) -> Response:
    """Return a flame graph as a separate page."""
    return _html(page, _FLAMEGRAPH_POLICY)


def _html(page: str, policy: str) -> Response:
    headers = _HEADERS | {"content-security-policy": policy, "cache-control": "no-store"}
    return Response(page.encode(), HTTPStatus.OK, headers | {"content-type": "text/html; charset=utf-8"})
