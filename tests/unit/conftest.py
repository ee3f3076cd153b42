"""Settings for all unit tests."""

from __future__ import annotations

import logging

import pytest
import structlog
from hypothesis import settings

# The time of an example depends on the machine only.
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
