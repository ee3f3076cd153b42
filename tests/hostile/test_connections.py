"""Floods of the network: connections and requests of a user without any rights."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from ..kernel.daemons import Daemon
from ..kernel.waiting import wait_until
from .bystander import Bystander
from .floods import HOSTILE_S, at_length, attackers, expect_left_alone

PREAMBLE = """
import contextlib, http.client, itertools, os, socket, sys, time

port, pid = map(int, sys.argv[1:])

def connected(source="127.0.0.1"):
    return socket.create_connection(("127.0.0.1", port), source_address=(source, 0))
"""

# What an attacker does until it is killed.
ATTACKS = {
    "requests that are never finished": """
held = []
while True:
    try:
        held.append(connected())
        held[-1].sendall(b"GET /v1/processes HTTP/1.1\\r\\nx: " + b"y" * 8000)
    except OSError:
        time.sleep(0.01)
    held = held[-900:]
""",
    "connections that come and go": """
while True:
    with contextlib.suppress(OSError):
        connected().close()
""",
    "requests without a pause": """
paths = itertools.cycle(["/metrics", "/v1/processes", f"/v1/processes/{pid}/sites", f"/flamegraph?pid={pid}"])
while True:
    with contextlib.suppress(OSError, http.client.HTTPException):
        connection = http.client.HTTPConnection("127.0.0.1", port)
        for path in paths:
            connection.request("GET", path)
            connection.getresponse().read()
""",
    "answers that nobody reads": """
held = []
while True:
    with contextlib.suppress(OSError):
        held.append(connected())
        held[-1].sendall(b"GET /assets/vendor/flamegraph.js HTTP/1.1\\r\\nhost: localhost\\r\\n\\r\\n" * 100)
        held = held[-200:]
""",
    "requests of very many parts": """
bodies = b"POST / HTTP/1.1\\r\\nhost: l\\r\\ntransfer-encoding: chunked\\r\\n\\r\\n"
bodies += b"1\\r\\nx\\r\\n" * 100_000
headers = b"GET / HTTP/1.1\\r\\nhost: l\\r\\n" + b"a:\\r\\n" * 100_000
parameters = b"GET /v1/status?" + b"%ff=%ff&" * 2_000 + b" HTTP/1.1\\r\\nhost: l\\r\\n\\r\\n"
held = []
for part in itertools.cycle([bodies, headers, parameters]):
    with contextlib.suppress(OSError):
        held.append(connected())
        held[-1].setblocking(False)
    for each in held:
        with contextlib.suppress(OSError):
            each.send(part)
    held = held[-30:]
""",
    "rubbish": """
while True:
    with contextlib.suppress(OSError), connected() as connection:
        connection.sendall(os.urandom(4000) + b"\\r\\n\\r\\n")
        connection.recv(100)
""",
    "loopback addresses of all kinds": """
held = []
for number in itertools.count():
    with contextlib.suppress(OSError):
        held.append(connected(f"127.0.{number >> 8 & 255}.{number & 255 or 1}"))
        held[-1].sendall(b"GET /")
    held = held[-900:]
""",
}


LONG_ATTACKS = {"requests without a pause", "rubbish", "loopback addresses of all kinds"}


@pytest.fixture
def port(tracer: Daemon) -> int:
    return tracer.configuration["metrics"]["port"]


def scrape(port: int) -> str:
    """Why /metrics does not answer whole within five seconds; empty if it does."""
    command = "import sys, urllib.request as u; u.urlopen(sys.argv[1], timeout=5).read()"
    url = f"http://127.0.0.1:{port}/metrics"
    done = subprocess.run([sys.executable, "-c", command, url], capture_output=True, text=True, check=False)
    return done.stderr.strip().rpartition("\n")[2]


@pytest.mark.parametrize(
    "attack", [pytest.param(name, marks=at_length if name in LONG_ATTACKS else ()) for name in ATTACKS]
)
def test_a_flood_of_one_user_disturbs_no_other(attack: str, bystander: Bystander, port: int):
    """The traced program's figures, answers and ticks are as without it, and root's Prometheus scrapes on."""
    script = PREAMBLE + ATTACKS[attack]
    scraped = []
    with (
        expect_left_alone(bystander),
        attackers("/usr/bin/python3", "-S", "-c", script, str(port), str(bystander.program.pid), count=2),
    ):
        deadline_s = time.monotonic() + HOSTILE_S
        while time.monotonic() < deadline_s:
            scraped.append(scrape(port))
    failures = [reason for reason in scraped if reason]
    assert not failures, f"{len(failures)} of {len(scraped)} scrapes failed: {set(failures)}"
    wait_until(lambda: not scrape(port))
