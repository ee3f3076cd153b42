"""Which package a file belongs to."""

from __future__ import annotations

import pytest

from bpfleakd.runtimes.cpython.frames import module_of


@pytest.mark.parametrize(
    ("file", "module"),
    [
        ("/srv/app/shop.py", "shop"),
        ("shop.py", "shop"),
        ("/usr/lib/python3.11/json/decoder.py", "python3.11"),
        ("/usr/local/lib/python3.13/asyncio/events.py", "python3.11"),
        ("<frozen importlib._bootstrap>", "python3.11"),
        ("/usr/lib/python3/dist-packages/yaml/loader.py", "yaml"),
        ("/srv/venv/lib/python3.12/site-packages/flask/app.py", "flask"),
        ("/srv/venv/lib/python3.12/site-packages/six.py", "six"),
        ("<string>", "<string>"),
        ("/srv/app/.py", ".py"),
    ],
)
def test_module_of(file: str, module: str) -> None:
    """The standard library is the interpreter's, whatever its place."""
    assert module_of(file, "python3.11") == module
