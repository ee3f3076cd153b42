"""The programs to load, according to the configuration, and the child that loads them ahead."""

from __future__ import annotations

from pathlib import Path

# lean_imports comes before all imports of structlog, asyncio or hashlib.
from bpfleakd import lean_imports  # noqa: F401
from bpfleakd.config import Config, WantedAttachMethod, WantedSyscallMethod
from bpfleakd.config import Walker as WantedWalker
from bpfleakd.daemon.service_manager import systemd_directory
from bpfleakd.kernel.compilation.options import Capacities, LoadOptions
from bpfleakd.kernel.loader import expect_load
from bpfleakd.kernel.programs import AttachMethod, SyscallMethod, WalkerKind


def load_options(config: Config) -> LoadOptions:
    """The options for compiling and loading the programs."""
    method, walker, limits = config.attach_method, config.walker, config.limits
    syscalls = config.syscall_method
    return LoadOptions(
        Capacities(limits.processes, limits.sites, limits.stacks, limits.threads, limits.process_sites),
        None if method is WantedAttachMethod.AUTO else AttachMethod(method.value),
        None if walker is WantedWalker.AUTO else WalkerKind(walker.value),
        cache_directory(config),
        None if syscalls is WantedSyscallMethod.AUTO else SyscallMethod(syscalls.value),
    )


def cache_directory(config: Config) -> Path | None:
    """The directory for compiled programs and tables; None for no cache."""
    # The second is the directory that systemd creates (CacheDirectory=).
    return config.cache_dir or systemd_directory("CACHE_DIRECTORY")


def load_ahead(config: Config) -> None:
    """Let the loader, if started ahead, load the programs while the daemon imports its modules."""
    expect_load(config.bpffs_dir, load_options(config))
