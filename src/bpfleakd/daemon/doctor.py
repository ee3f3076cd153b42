"""What this machine supports: checks of the kernel, the mounts, the capabilities and the tools.

The file system roots are arguments. A check never raises: an error in it becomes its detail.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from bpfleakd.api.client import DaemonClient
from bpfleakd.api.peer import peer_of
from bpfleakd.errors import BpfleakdError, DaemonUnreachable
from bpfleakd.model.daemon import Check, CheckStatus
from bpfleakd.paths import DEFAULT_SOCKET_PATH
from bpfleakd.symbols.libdw import libdw
from bpfleakd.symbols.libiberty import demangler

OK, WARN, FAIL = CheckStatus.OK, CheckStatus.WARN, CheckStatus.FAIL

# The bits of CapEff (linux/capability.h), the purpose of each, and whether nothing works without it.
_CAPABILITIES = (
    ("SYS_ADMIN", 21, "loads programs and links uprobes", True),
    ("SYS_PTRACE", 19, "reads the mappings and files of other users' processes", True),
    ("BPF", 39, "loads programs (SYS_ADMIN includes it)", False),
    ("PERFMON", 38, "lets programs read a target's memory (SYS_ADMIN includes it)", False),
    ("NET_ADMIN", 12, "receives process events: notices exit, exec and fork at once", False),
)
_INCLUDES_BPF = 21
_BPF_AND_PERFMON = 1 << 39 | 1 << 38

# For the sockets of other users' runtimes: to write to them, and to make runtimes open them.
_FOR_RUNTIMES = {"CAP_DAC_OVERRIDE": 1, "CAP_KILL": 5}
_CONNECT_TIMEOUT_S = 1.0

_OLDEST_TRIED = (6, 1)

_SEE_IF_BCC = "import bcc; bcc.BPF; print(bcc.__version__, 'in', bcc.__file__)"
_IMPORT_TIMEOUT_S = 30.0


def _available_attach_methods() -> tuple[tuple[str, ...], dict[str, str]]:
    # Imported here, since it imports the kernel side.
    from bpfleakd.kernel.loader import available_methods

    return available_methods()


def _subscribe_for_once() -> None:
    from bpfleakd.kernel.process_events import ProcessEvents

    ProcessEvents().close()


def run_checks(
    *,
    socket_path: Path = DEFAULT_SOCKET_PATH,
    proc_root: Path = Path("/proc"),
    sys_root: Path = Path("/sys"),
    uname: os.uname_result | None = None,
    attach_methods: Callable[[], tuple[tuple[str, ...], dict[str, str]]] = _available_attach_methods,
    process_events: Callable[[], object] = _subscribe_for_once,
) -> tuple[Check, ...]:
    """Run every check, from the kernel upwards.

    `attach_methods` tries which methods the kernel supports, with the reasons for the others
    (kernel.loader.available_methods); `process_events` subscribes to them and raises if that is not possible.
    """
    uname = uname or os.uname()
    return (
        _kernel(uname.release),
        _architecture(uname.machine),
        _root(os.geteuid()),
        *_capabilities(proc_root / "self/status"),
        _runtime_sockets(socket_path, proc_root),
        _process_events(process_events),
        _mounted("tracefs", "tracefs", "/sys/kernel/tracing", proc_root / "self/mounts"),
        _mounted("bpffs", "bpf", "/sys/fs/bpf", proc_root / "self/mounts"),
        _lockdown(sys_root / "kernel/security/lockdown"),
        _uprobes(sys_root / "bus/event_source/devices/uprobe/type"),
        _bcc(sys.executable),
        _attach_method(attach_methods, uname.release),
        _library("libdw", libdw() is not None, "names source lines and inlined functions", "libdw1"),
        _library("libbfd", demangler() is not None, "demangles C++ and Rust names", "binutils"),
        _daemon(socket_path),
    )


def _kernel(release: str) -> Check:
    from bpfleakd.kernel.programs import check_release, numbers_of

    try:
        check_release(release)
    except BpfleakdError as error:
        return Check("kernel", FAIL, error.message, error.hint)
    version = numbers_of(release)
    if version < _OLDEST_TRIED:
        return Check(
            "kernel", WARN, f"{release}: bpfleakd was tested on Linux 6.1 and later", "try it and see"
        )
    # CVE-2025-21834: the uprobe system call of return probes did not pass seccomp filters.
    if (6, 11) <= version <= (6, 12, 13) or (6, 13) <= version <= (6, 13, 2):
        words = f"{release}: return probes kill programs under a seccomp filter (CVE-2025-21834)"
        return Check("kernel", WARN, words, "update to 6.12.14, 6.13.3 or later; such programs are refused")
    return Check("kernel", OK, release)


def _architecture(machine: str) -> Check:
    if machine == "x86_64":
        return Check("architecture", OK, machine)
    return Check("architecture", FAIL, f"{machine}: only x86-64 is supported", "use an x86-64 machine")


def _root(euid: int) -> Check:
    if euid == 0:
        return Check("root", OK, "this shell is root")
    return Check("root", WARN, f"this shell is user {euid}", "run as root (sudo), like the daemon")


def _capabilities(status: Path) -> list[Check]:
    try:
        effective = _effective(status)
    except (OSError, IndexError) as error:
        return [Check("capabilities", FAIL, f"cannot be read: {error}", "mount /proc")]
    return [_capability(effective, *capability) for capability in _CAPABILITIES]


def _capability(effective: int, name: str, bit: int, purpose: str, needed: bool) -> Check:
    check = f"CAP_{name}"
    if effective >> bit & 1:
        return Check(check, OK, purpose)
    if name in ("BPF", "PERFMON") and effective >> _INCLUDES_BPF & 1:
        return Check(check, OK, f"missing, but included in SYS_ADMIN: {purpose}")
    if name == "SYS_ADMIN" and effective & _BPF_AND_PERFMON == _BPF_AND_PERFMON:
        words = "missing: perf events need it for uprobes; from Linux 6.6 on, BPF and PERFMON suffice"
        return Check(check, WARN, words, "add it on an older kernel")
    way_out = f"run as root, or add {check} to the service's AmbientCapabilities (containers: --cap-add)"
    return Check(check, FAIL if needed else WARN, f"missing: {purpose}", way_out)


def _runtime_sockets(socket_path: Path, proc_root: Path) -> Check:
    """The daemon's capability, if a daemon runs: a root shell always has it."""
    name = "runtime sockets"
    daemon = _daemon_pid(socket_path)
    whose = "the daemon" if daemon else "this shell"
    try:
        effective = _effective(proc_root / str(daemon or "self") / "status")
    except (OSError, IndexError) as error:
        return Check(name, WARN, f"the capabilities of {whose} cannot be read: {error}", "run as root")
    lacks = [one for one, bit in _FOR_RUNTIMES.items() if not effective >> bit & 1]
    if not lacks:
        has = " and ".join(_FOR_RUNTIMES)
        return Check(name, OK, f"{whose} has {has}: can ask .NET, Java and Node.js of any user")
    words = f"{whose} lacks {' and '.join(lacks)}: cannot ask .NET, Java and Node.js of other users"
    way_out = "write perf maps, or install runtime-sockets.conf (first read what it grants)"
    return Check(name, WARN, words, way_out)


def _daemon_pid(socket_path: Path) -> int:
    """The pid of the daemon behind a socket, from the kernel; 0 without a daemon."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_CONNECT_TIMEOUT_S)
            connection.connect(str(socket_path))
            return peer_of(connection).pid
    except OSError:
        return 0


def _effective(status: Path) -> int:
    """Raises OSError or IndexError."""
    return int(re.findall(r"^CapEff:\s*([0-9a-f]+)", status.read_text(), re.MULTILINE)[0], 16)


def _process_events(subscribe: Callable[[], object]) -> Check:
    name = "process events"
    try:
        subscribe()
    except BpfleakdError as error:
        return Check(
            name, WARN, f"{error.message}: the daemon scans /proc instead, which is slower", error.hint
        )
    except Exception as error:
        return Check(
            name, WARN, f"{type(error).__name__}: {error}", "the daemon scans /proc instead, which is slower"
        )
    return Check(name, OK, "the daemon notices start, exec and exit of processes at once")


def _mounted(name: str, kind: str, place: str, mounts: Path) -> Check:
    try:
        found = [line.split()[1] for line in mounts.read_text().splitlines() if line.split()[2] == kind]
    except (OSError, IndexError) as error:
        return Check(name, FAIL, f"the mounts cannot be read: {error}", "mount /proc")
    if place in found:
        return Check(name, OK, f"mounted on {place}")
    elsewhere = f"mounted on {found[0]} only" if found else "not mounted"
    return Check(name, FAIL, f"{elsewhere}; expected on {place}", f"mount -t {kind} {kind} {place}")


def _lockdown(state: Path) -> Check:
    try:
        text = state.read_text()
    except OSError:
        return Check("lockdown", OK, "not in this kernel, or securityfs is not mounted")
    chosen = re.search(r"\[(\w+)\]", text)
    mode = chosen[1] if chosen else "unknown"
    if mode == "confidentiality":
        words = "confidentiality: the kernel forbids tracing and reading memory"
        return Check("lockdown", FAIL, words, "boot with lockdown=integrity, or without Secure Boot")
    return Check("lockdown", OK, mode)


def _uprobes(kind: Path) -> Check:
    try:
        return Check("uprobes", OK, f"perf event type {kind.read_text().strip()}")
    except OSError:
        way_out = "boot a kernel with CONFIG_UPROBE_EVENTS=y; in a container, mount /sys"
        return Check("uprobes", FAIL, f"there is no {kind}", way_out)


def _bcc(python: str) -> Check:
    """Import bcc in a child: it loads 100 MB of LLVM."""
    install = "apt install python3-bpfcc, and make the venv with --system-site-packages by /usr/bin/python3"
    try:
        # -P: not from the current directory, which may belong to anyone.
        child = subprocess.run(
            [python, "-P", "-c", _SEE_IF_BCC],
            capture_output=True,
            text=True,
            timeout=_IMPORT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check("bcc", FAIL, f"{python} did not import it: {error}", install)
    if child.returncode == 0:
        return Check("bcc", OK, child.stdout.strip())
    last_line = (child.stderr.strip().splitlines() or ["no message"])[-1]
    if "No module named 'bcc'" in last_line:
        return Check("bcc", FAIL, f"{python} has no module bcc", install)
    if "has no attribute 'BPF'" in last_line:
        return Check(
            "bcc", FAIL, "the module bcc is PyPI's, which is another project", f"pip uninstall bcc; {install}"
        )
    return Check("bcc", FAIL, last_line, install)


def _attach_method(available: Callable[[], tuple[tuple[str, ...], dict[str, str]]], release: str) -> Check:
    name = "attach method"
    try:
        methods, passed_over = available()
    except BpfleakdError as error:
        return Check(name, FAIL, error.message, error.hint)
    except Exception as error:
        # Any error: users run this command because something does not work.
        return Check(
            name, FAIL, f"{type(error).__name__}: {error}", "start `bpfleakd` in a terminal for details"
        )
    from bpfleakd.kernel.programs import since, unexpected_fallbacks

    unexpected = unexpected_fallbacks(passed_over, release)
    reasons = [
        f"; no {each}: {reason if each in unexpected else f'it came with Linux {since(each)}'}"
        for each, reason in passed_over.items()
    ]
    if not methods:
        detail = "none of session, multi and perf works" + "".join(reasons)
        return Check(name, FAIL, detail, "start `bpfleakd` in a terminal for details")
    others = f" (also: {', '.join(methods[1:])})" if methods[1:] else ""
    detail = f"{methods[0]}{others}{''.join(reasons)}"
    if unexpected:
        return Check(name, WARN, detail, "tracing works, but costs more than necessary: please report this")
    return Check(name, OK, detail)


def _library(name: str, is_there: bool, purpose: str, package: str) -> Check:
    if is_there:
        return Check(name, OK, f"{purpose}, in an unprivileged helper")
    return Check(name, WARN, f"not found: it {purpose}", f"apt install {package}")


def _daemon(socket_path: Path) -> Check:
    try:
        stats = DaemonClient(socket_path, timeout_s=5.0).stats()
    except DaemonUnreachable as error:
        return Check("daemon", WARN, error.message, error.hint)
    except BpfleakdError as error:
        return Check("daemon", FAIL, error.message, error.hint)
    return Check("daemon", OK, f"version {stats.version} answers on {socket_path}")
