"""What every unit test can rely on."""

from __future__ import annotations

import logging

import pytest
import structlog
from hypothesis import settings

# How long an example takes says something of the machine only.
settings.register_profile("bpfleakd", deadline=None)
settings.load_profile("bpfleakd")


@pytest.fixture(autouse=True)
def _logging_as_it_was():
    """A test that sets up logging leaves no trace of it in the next one."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers, root.level = handlers, level
    structlog.reset_defaults()
