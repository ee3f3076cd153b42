"""bpfleakd.service in a container: what systemd, the journal and the socket say of it."""

from __future__ import annotations

import json
import signal
import uuid
from dataclasses import dataclass

from ..kernel.kernel_objects import KernelObjects, objects_held_by, objects_pinned_below
from ..kernel.waiting import wait_until
from .container import CommandFailed, Container

UNIT = "bpfleakd.service"
_RUNTIME_DROP_INS = f"/run/systemd/system/{UNIT}.d"
CONFIG = "/etc/bpfleakd/config.yaml"

# Only processes that a test attaches to are traced.
BY_HAND = 'policy: {default: "off"}\n'


@dataclass
class Service:
    """The service, and programs for it to trace, in separate units."""

    machine: Container

    def systemctl(self, *arguments: str) -> str:
        return self.machine.run("systemctl", *arguments)

    def show(self, name: str, unit: str = UNIT) -> str:
        """One of its properties (systemctl show)."""
        return self.systemctl("show", "--value", "--property", name, unit).strip()

    @property
    def pid(self) -> int:
        """The daemon's, in the container; 0 if it does not run."""
        return int(self.show("MainPID"))

    def wait_for_another_daemon(self, pid: int, timeout_s: float = 60.0) -> int:
        """Wait until it runs with another pid and is ready; returns that."""
        wait_until(lambda: self.pid not in (0, pid) and self.show("ActiveState") == "active", timeout_s)
        return self.pid

    def start_with(self, drop_in: str = "", configuration: str = BY_HAND) -> None:
        """Restart it with changed lines of the unit, and another configuration than the packaged one."""
        self.machine.run("rm", "-rf", _RUNTIME_DROP_INS)
        if drop_in:
            self.machine.write(f"{_RUNTIME_DROP_INS}/test.conf", f"[Service]\n{drop_in}\n")
        self.machine.write(CONFIG, configuration)
        self.systemctl("daemon-reload")
        self.systemctl("stop", UNIT)
        self.machine.run("sh", "-c", f"systemctl reset-failed {UNIT} || true")
        try:
            self.systemctl("start", UNIT)
        except CommandFailed as failure:
            raise CommandFailed(["systemctl", "start", UNIT], failure.exit_code, self.journal()) from failure

    def journal(self) -> str:
        """Its and systemd's log since the boot."""
        self.machine.run("journalctl", "--sync")
        return self.machine.run("journalctl", "--unit", UNIT, "--output", "cat", "--no-pager", "--all")

    def events(self, name: str) -> list[dict]:
        """The daemon's log lines of one event."""
        lines = [json.loads(line) for line in self.journal().splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == name]

    # -- programs to trace ---------------------------------------------------------------------------------

    def control(self, *arguments: str | int) -> str:
        """Run bpfleakctl as root."""
        return self.machine.run("bpfleakctl", *(str(argument) for argument in arguments))

    def top(self, pid: int) -> dict:
        return json.loads(self.control("top", "--pid", pid, "--once", "--json"))

    def processes(self) -> list[dict]:
        """Those that are traced now."""
        rows = json.loads(self.control("ps", "--json"))["processes"]
        return [row["process"] for row in rows if row["process"]["state"] == "traced"]

    def start_program(self, *command: str, user: str = "nobody") -> int:
        """Run a program in a unit of its own; returns its pid. It ends with the test's `programs` fixture."""
        unit = f"program-{uuid.uuid4().hex[:8]}"
        self.machine.run("systemd-run", "--quiet", f"--unit={unit}", f"--uid={user}", *command)
        return int(self.show("MainPID", unit))

    def stop_programs(self) -> None:
        self.systemctl("kill", "--signal", str(int(signal.SIGKILL)), "program-*.service")

    # -- what remains of it --------------------------------------------------------------------------------

    def kernel_objects(self) -> KernelObjects:
        """The BPF objects that are the daemon's now."""
        objects = objects_pinned_below(self.machine.bpffs)
        if self.pid:
            objects.add(objects_held_by(self.machine.pid_here(self.pid)))
        return objects
