"""Daemons and programs as the kernel tests have them."""

from __future__ import annotations

from ..kernel.conftest import _machine, daemon, started, workload

__all__ = ["_machine", "daemon", "started", "workload"]
