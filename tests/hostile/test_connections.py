"""Floods of the network: connections and requests of a user without any rights."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from ..kernel.daemons import Daemon
from ..kernel.ports import free_port
from ..kernel.waiting import wait_until
from ..kernel.workloads import Workload
from .bystander import Bystander
from .floods import HOSTILE_S, attackers, expect_left_alone

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


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def besieged(port: int, daemon: Callable[..., Daemon], workload: Callable[..., Workload]) -> Bystander:
    """A bystander whose daemon listens on TCP."""
    tracer = daemon(metrics={"enabled": True, "port": port})
    return Bystander(tracer, workload("many_sites", 1, 23, 101))


def scrape(port: int) -> bool:
    """Whether /metrics answers whole within five seconds."""
    command = "import sys, urllib.request as u; u.urlopen(sys.argv[1], timeout=5).read()"
    url = f"http://127.0.0.1:{port}/metrics"
    done = subprocess.run([sys.executable, "-c", command, url], capture_output=True, check=False)
    return done.returncode == 0


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_flood_of_one_user_disturbs_no_other(attack: str, besieged: Bystander, port: int):
    """The traced program's figures, answers and ticks are as without it, and root's Prometheus scrapes on."""
    script = PREAMBLE + ATTACKS[attack]
    scraped = []
    with (
        expect_left_alone(besieged),
        attackers("/usr/bin/python3", "-S", "-c", script, str(port), str(besieged.program.pid), count=2),
    ):
        deadline_s = time.monotonic() + HOSTILE_S
        while time.monotonic() < deadline_s:
            scraped.append(scrape(port))
    besieged.check()
    assert all(scraped), f"{scraped.count(False)} of {len(scraped)} scrapes failed"
    for event in ("tick.failed", "api.failed", "Traceback", "library"):
        assert event not in besieged.tracer.log, besieged.tracer.log
    # What the log says of refusals is a line, not one for each.
    assert besieged.tracer.log.count("api.refused") <= 2
    wait_until(lambda: scrape(port))
