"""Released programs that do not leak, under constant load."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import random
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from bench.clean_tools import compiler, git, java, node, postgresql, sqlite
from bench.serving import asked_by, connected, http_client, running, tool
from bench.tracing import free_port

_KEYS = 2_000
# memcached stores values of half a megabyte and more in several pieces.
_CACHE_MB = 64
_LARGEST_LOG2 = 19.9
_REQUESTS_OF_A_CLIENT = 50

_PYTHON = """
import collections, json, re, time
latest = collections.deque(maxlen=500)
while True:
    for number in range(50):
        text = json.dumps({"number": number, "text": "x" * number, "list": list(range(number))})
        latest.append(json.loads(text))
        re.findall("[0-9]+", text)
    time.sleep(0.02)
"""


def redis() -> AbstractContextManager[int]:
    """redis-server, whose values are constantly replaced by values of other sizes."""
    # On a busy machine requests are slow, so the slow log fills for longer than any verdict waits.
    return _redis("--slowlog-max-len", 0)


def redis_slow_log() -> AbstractContextManager[int]:
    """The same with every request in the slow log, which keeps the last 128."""
    return _redis("--slowlog-log-slower-than", 0, "--slowlog-max-len", 128)


@contextlib.contextmanager
def _redis(*options: object) -> Iterator[int]:
    port = free_port()
    command = [tool("redis-server"), "--port", port, "--save", "", "--appendonly", "no", *options]
    with running(*command) as server, asked_by(lambda: _redis_client(port)):
        yield server.pid


@contextlib.contextmanager
def memcached() -> Iterator[int]:
    """A full memcached: values from some bytes to a megabyte evict others; clients come and go."""
    port = free_port()
    command = [tool("memcached"), "-u", "root", "-l", "127.0.0.1", "-p", port, "-m", _CACHE_MB, "-t", "2"]
    with running(*command) as server, asked_by(lambda: _memcached_client(port)):
        yield server.pid


@contextlib.contextmanager
def nginx() -> Iterator[int]:
    """nginx as one process, which serves a file over connections that are kept for a while."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="bpfleakd-nginx-") as directory:
        Path(directory, "index.html").write_text("x" * 10_000)
        Path(directory, "nginx.conf").write_text(
            "daemon off; master_process off; error_log stderr; pid nginx.pid; events {}\n"
            f"http {{ access_log off; server {{ listen 127.0.0.1:{port}; root {directory}; }} }}\n"
        )
        command = [tool("nginx"), "-p", directory, "-c", "nginx.conf"]
        with running(*command) as server, asked_by(lambda: http_client(port)):
            yield server.pid


@contextlib.contextmanager
def python() -> Iterator[int]:
    """Python that creates and drops objects, by malloc, so that each is recorded."""
    with running("env", "PYTHONMALLOC=malloc", sys.executable, "-c", _PYTHON) as process:
        yield process.pid


@contextlib.contextmanager
def prometheus() -> Iterator[int]:
    """Prometheus, which scrapes itself every second and answers queries."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="bpfleakd-prometheus-") as directory:
        scraped = {"job_name": "self", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
        # JSON is YAML.
        config = {"global": {"scrape_interval": "1s"}, "scrape_configs": [scraped]}
        Path(directory, "prometheus.json").write_text(json.dumps(config))
        options = (
            f"--config.file={directory}/prometheus.json",
            f"--storage.tsdb.path={directory}/tsdb",
            f"--web.listen-address=127.0.0.1:{port}",
        )
        with running(tool("prometheus"), *options) as server, asked_by(lambda: _prometheus_client(port)):
            yield server.pid


CLEAN_PROGRAMS = {
    "redis": redis,
    "redis with its slow log": redis_slow_log,
    "memcached": memcached,
    "nginx": nginx,
    "python": python,
    "prometheus": prometheus,
    "sqlite with a large cache": sqlite,
    "PostgreSQL": postgresql,
    "Node.js": node,
    "Java": java,
    "gcc in a loop": compiler,
    "git": git,
}


def _redis_client(port: int) -> Iterator[None]:
    with connected(port) as connection, connection.makefile("rwb") as stream:
        for number in itertools.count():
            key, value = _entry(number)
            stream.write(b"SET %b %b\r\nGET %b\r\n" % (key, value, key))
            stream.flush()
            for _ in range(3):
                stream.readline()
            if number >= _KEYS:
                yield


def _memcached_client(port: int) -> Iterator[None]:
    filled_bytes = 0
    while True:
        with connected(port) as connection, connection.makefile("rwb") as stream:
            for _ in range(_REQUESTS_OF_A_CLIENT):
                key = b"key-%d" % random.randrange(_KEYS)
                # Equal numbers of values of each order of magnitude.
                value = b"v" * int(2 ** random.uniform(4, _LARGEST_LOG2))
                stream.write(b"set %b 0 0 %d\r\n%b\r\nget %b\r\n" % (key, len(value), value, key))
                stream.flush()
                while stream.readline() != b"END\r\n":
                    pass
                filled_bytes += len(value)
                if filled_bytes > 2 * _CACHE_MB << 20:
                    yield
            stream.write(b"stats\r\n")
            stream.flush()
            while stream.readline() != b"END\r\n":
                pass


def _prometheus_client(port: int) -> Iterator[None]:
    connected(port).close()
    queries = ("rate(prometheus_http_request_duration_seconds_bucket[1m])", 'topk(5, {__name__=~"go_.*"})')
    while True:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
            for number in range(50):
                end_s = time.time()
                wanted = {"query": queries[number % 2], "start": end_s - 300, "end": end_s, "step": 1}
                connection.request("GET", f"/api/v1/query_range?{urllib.parse.urlencode(wanted)}")
                connection.getresponse().read()
                yield


def _entry(number: int) -> tuple[bytes, bytes]:
    """Each key once at first, as fast as possible; then random keys."""
    key = number if number < _KEYS else random.randrange(_KEYS)
    return b"key-%d" % key, b"v" * random.randrange(1, 2_000)
