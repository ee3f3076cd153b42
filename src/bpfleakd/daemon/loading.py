"""What is loaded into the kernel, by the configuration, and the child that loads it ahead."""

from __future__ import annotations

from pathlib import Path

# lean_imports comes before all that imports structlog, asyncio or hashlib.
from bpfleakd import lean_imports  # noqa: F401
from bpfleakd.config import Config, WantedAttachMethod
from bpfleakd.config import Walker as WantedWalker
from bpfleakd.daemon.service_manager import systemd_directory
from bpfleakd.kernel.compilation.options import Capacities, LoadOptions
from bpfleakd.kernel.loader import expect_load
from bpfleakd.kernel.programs import AttachMethod, WalkerKind

__all__ = ["cache_directory", "load_ahead", "load_options"]


def load_options(config: Config) -> LoadOptions:
    """Return how the programs are made."""
    method, walker, limits = config.attach_method, config.walker, config.limits
    return LoadOptions(
        Capacities(limits.processes, limits.sites, limits.stacks, limits.threads, limits.process_sites),
        None if method is WantedAttachMethod.AUTO else AttachMethod(method.value),
        None if walker is WantedWalker.AUTO else WalkerKind(walker.value),
        cache_directory(config),
    )


def cache_directory(config: Config) -> Path | None:
    """Return where compiled programs and tables are kept; None: nowhere."""
    # The second is what systemd makes (CacheDirectory=).
    return config.cache_dir or systemd_directory("CACHE_DIRECTORY")


def load_ahead(config: Config) -> None:
    """Have the loader, if it was started ahead, load the programs while the daemon imports its modules."""
    expect_load(config.bpffs_dir, load_options(config))
