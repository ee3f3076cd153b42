"""A machine with a real systemd: `systemd-nspawn --boot` on an overlay of this one's file system.

What it writes is in memory and goes with it. It has a network of its own, without a way out, and a directory
of its own in bpffs; the kernel is this machine's.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

_BOOT_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 20.0
_COMMAND_TIMEOUT_S = 120.0
_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
    "HOME": "/root",
    "COLUMNS": "200",
    "DEBIAN_FRONTEND": "noninteractive",
    "SYSTEMD_PAGER": "",
}

# No login, no network, none of the services that happen to be installed here: what systemd itself brings.
_KERNEL_ARGUMENTS = ("systemd.unit=basic.target", "systemd.mask=systemd-sysctl.service")


class CommandFailed(Exception):
    """A command in the container ended with another exit code than 0."""

    def __init__(self, command: Sequence[str], exit_code: int, output: str) -> None:
        super().__init__(f"{' '.join(command)} ended with {exit_code}:\n{output}")
        self.exit_code = exit_code
        self.output = output


class Container:
    """Started by `boot`; `stop` leaves nothing of it. `root` is its file system as seen from here."""

    def __init__(self, directory: Path) -> None:
        name = f"bpfleakd-{uuid.uuid4().hex[:8]}"
        self.bpffs = Path("/sys/fs/bpf", name)
        self.root = directory / "root"
        self._name = name
        self._directory = directory
        self._cgroups = [root / name for root in _cgroup_roots()]
        self._nspawn: subprocess.Popen | None = None
        self._leader = 0

    # -- its life ------------------------------------------------------------------------------------------

    def boot(self) -> None:
        """Start it and wait until systemd is up. Raises CommandFailed; call `stop` in any case."""
        _run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(self._directory))
        for name in ("upper", "work", "root"):
            (self._directory / name).mkdir()
        layers = f"lowerdir=/,upperdir={self._directory}/upper,workdir={self._directory}/work"
        _run("mount", "-t", "overlay", "-o", layers, "overlay", str(self.root))
        # A container whose packages may start their services.
        (self.root / "etc/machine-id").write_text("")
        (self.root / "usr/sbin/policy-rc.d").unlink(missing_ok=True)
        self.bpffs.mkdir()
        for cgroup in self._cgroups:
            cgroup.mkdir()
        with (self._directory / "console").open("wb") as console:
            self._nspawn = subprocess.Popen(
                self._command(), stdin=subprocess.DEVNULL, stdout=console, stderr=console
            )
        deadline = time.monotonic() + _BOOT_TIMEOUT_S
        while not self._is_up():
            if self._nspawn.poll() is not None or time.monotonic() > deadline:
                output = (self._directory / "console").read_text(errors="replace")
                raise CommandFailed(self._command(), self._nspawn.poll() or 0, output)
            time.sleep(0.05)

    def stop(self) -> None:
        """Power it off and remove its files."""
        if self._nspawn is not None and self._nspawn.poll() is None:
            self._nspawn.send_signal(signal.SIGTERM)
            try:
                self._nspawn.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._nspawn.kill()
                self._nspawn.wait()
        for mount in (self.root, self._directory):
            subprocess.run(["umount", "--recursive", "--lazy", mount], capture_output=True, check=False)
        shutil.rmtree(self.bpffs, ignore_errors=True)
        for cgroup in self._cgroups:
            for directory in sorted((cgroup, *cgroup.rglob("*/")), reverse=True):
                if directory.is_dir():
                    directory.rmdir()

    # -- its commands --------------------------------------------------------------------------------------

    def run(self, *command: str | Path, timeout_s: float = _COMMAND_TIMEOUT_S) -> str:
        """Run a command as root and return its output. Raises CommandFailed."""
        texts = [str(part) for part in command]
        done = subprocess.run(
            [*self.entrance(), *texts],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
            env=_ENVIRONMENT,
        )
        if done.returncode != 0:
            raise CommandFailed(texts, done.returncode, done.stdout)
        return done.stdout

    def entrance(self) -> list[str]:
        """The command prefix that enters the container."""
        return ["nsenter", "--target", str(self._leader), "--all", "--"]

    def pid_here(self, pid: int) -> int:
        """The pid that a process of the container's has on this machine."""
        for status in Path("/proc").glob("[0-9]*/status"):
            try:
                line = next(line for line in status.read_text().splitlines() if line.startswith("NSpid:"))
                if line.split()[-1] == str(pid) and len(line.split()) > 2 and self._holds(status.parent):
                    return int(status.parent.name)
            except (OSError, StopIteration):  # it ended meanwhile
                continue
        raise ProcessLookupError(f"no process {pid} in the container")

    def path(self, path: str) -> Path:
        """A file of the container's, as seen from here while it runs: with its mounts."""
        return Path(f"/proc/{self._leader}/root{path}")

    def give(self, file: Path, path: str) -> str:
        """Copy a file of this machine's into the container; returns `path`."""
        shutil.copy(file, self.path(path))
        return path

    def write(self, path: str, text: str) -> None:
        """Write a file, its directory made."""
        self.path(path).parent.mkdir(parents=True, exist_ok=True)
        self.path(path).write_text(text)

    # -- inside --------------------------------------------------------------------------------------------

    def _command(self) -> list[str]:
        # nspawn makes control groups below its own, and keeps the network: with --private-network it would
        # mount another /sys, without tracefs.
        enter = "".join(f"echo $$ >{cgroup}/cgroup.procs && " for cgroup in self._cgroups)
        nspawn = [
            "systemd-nspawn",
            "--boot",
            "--quiet",
            f"--directory={self.root}",
            f"--machine={self._name}",
            "--register=no",
            "--keep-unit",
            "--capability=all",
            "--system-call-filter=bpf perf_event_open",
            "--bind=/sys/kernel/tracing",
            f"--bind={self.bpffs}:/sys/fs/bpf",
            "--console=pipe",
            *_KERNEL_ARGUMENTS,
        ]
        return ["sh", "-c", enter + 'exec unshare --net -- "$@"', "sh", *nspawn]

    def _holds(self, process: Path) -> bool:
        own = Path(f"/proc/{self._leader}/ns/pid")
        return (process / "ns/pid").readlink() == own.readlink()

    def _is_up(self) -> bool:
        assert self._nspawn is not None
        pid = self._nspawn.pid
        children = Path(f"/proc/{pid}/task/{pid}/children")
        try:
            self._leader = int(children.read_text().split()[0])
            return self.run("systemctl", "is-system-running", "--wait").strip() == "running"
        except (OSError, IndexError, CommandFailed):
            return False


def _cgroup_roots() -> list[Path]:
    """Where systemd keeps its groups: the only hierarchy, or two beside those of version 1."""
    root = Path("/sys/fs/cgroup")
    return [path for path in (root / "systemd", root / "unified") if path.is_dir()] or [root]


def _run(*command: str) -> None:
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"}
    )
    if done.returncode != 0:
        raise CommandFailed(command, done.returncode, done.stderr)
