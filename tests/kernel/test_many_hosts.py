"""Two daemons in separate networks, as on two hosts, and one Prometheus that scrapes both."""

from __future__ import annotations

import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pytest

from .conftest import place_of_daemon
from .daemons import Daemon
from .machine import need_tool
from .prometheus_server import PrometheusServer
from .waiting import wait_until
from .workloads import Workload, build

LIVE_BYTES = "bpfleakd_site_live_bytes"
PORT = 9797
BLOCK_BYTES = 101 << 10
# Leaked blocks on each host.
BLOCKS = (23, 41)


@dataclass(frozen=True)
class Network:
    """A network namespace, and its address, which is reached from the host's own network."""

    name: str
    address: str

    @property
    def prefix(self) -> tuple[str, ...]:
        """The command prefix that executes in it. Unlike `ip netns exec`, it leaves /sys unchanged."""
        return (need_tool("nsenter"), f"--net=/run/netns/{self.name}", "--")


@contextmanager
def network() -> Iterator[Network]:
    """A namespace with one end of a veth pair, in a subnet of 198.18.0.0/15 (RFC 2544: for tests)."""
    key = secrets.token_hex(3)
    name, outside, inside = f"bpfleakd-{key}", f"blo{key}", f"bli{key}"
    subnet = f"198.18.{secrets.randbelow(256)}.{4 * secrets.randbelow(64)}"
    host, _, last = subnet.rpartition(".")
    ours, theirs = (f"{host}.{int(last) + number}" for number in (1, 2))

    def ip(*arguments: str) -> None:
        done = subprocess.run([need_tool("ip"), *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"

    ip("netns", "add", name)
    try:
        ip("link", "add", outside, "type", "veth", "peer", "name", inside, "netns", name)
        ip("address", "add", f"{ours}/30", "dev", outside)
        ip("link", "set", outside, "up")
        ip("-n", name, "address", "add", f"{theirs}/30", "dev", inside)
        ip("-n", name, "link", "set", inside, "up")
        yield Network(name, theirs)
    finally:
        # With the namespace its end goes, and with that ours.
        ip("netns", "delete", name)


@contextmanager
def host(tmp_path_factory: pytest.TempPathFactory, blocks: int) -> Iterator[str]:
    """A daemon that traces a program with this many leaked blocks; returns what Prometheus scrapes."""
    with ExitStack() as undo:
        place = undo.enter_context(network())
        directory, bpffs_dir, configuration = place_of_daemon(tmp_path_factory)
        configuration |= {"metrics": {"enabled": True, "address": place.address, "port": PORT}}
        undo.callback(shutil.rmtree, bpffs_dir, ignore_errors=True)
        program = Workload([build("growing"), "leak"])
        undo.callback(program.kill)
        daemon = Daemon(directory, bpffs_dir, configuration, place.prefix).start()
        undo.callback(lambda: daemon.kill() if daemon.is_alive else None)
        daemon.attach_with_tables(program.pid)
        program.step(blocks)
        yield f"{place.address}:{PORT}"
        daemon.stop()


@pytest.mark.long
def test_the_same_leak_on_two_hosts_is_one_row(tmp_path_factory, tmp_path):
    """Summed by fingerprint and function it is what both have lost; by instance it is what each has."""
    with ExitStack() as undo:
        targets = [undo.enter_context(host(tmp_path_factory, blocks)) for blocks in BLOCKS]
        prometheus = PrometheusServer(tmp_path, targets)
        undo.callback(prometheus.stop)
        leak = f'{LIVE_BYTES}{{function="never_freed"}}'
        total = sum(BLOCKS) * BLOCK_BYTES

        def rows() -> list[dict]:
            return prometheus.query(f"sum by (site, function) ({leak})")

        wait_until(lambda: [row for row in rows() if float(row["value"][1]) == total], 20)
        (row,) = rows()
        assert len(row["metric"]["site"]) == 16
        by_host = {one["metric"]["instance"]: float(one["value"][1]) for one in prometheus.query(leak)}
        expected = [blocks * BLOCK_BYTES for blocks in BLOCKS]
        assert by_host == dict(zip(targets, expected, strict=True))
        assert prometheus.value(f"count by (site) ({leak} > 0)") == 2
