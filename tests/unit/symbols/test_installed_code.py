"""Which code belongs to an installed library, by its path."""

from __future__ import annotations

import pytest

from bpfleakd.symbols.installed_code import is_installed_file, is_installed_script, is_installed_source


@pytest.mark.parametrize(
    "path",
    [
        "/usr/lib/x86_64-linux-gnu/libxml2.so.2.9.14",
        "/usr/lib/x86_64-linux-gnu/libxml2.so.2.9.14 (deleted)",
        "/lib64/libssl.so.3",
        "/usr/local/lib/libcurl.so",
        "/srv/app/.venv/lib/python3.11/site-packages/numpy/_core/_multiarray_umath.cpython-311-x86_64-linux-gnu.so",
    ],
)
def test_files_of_libraries_and_packages(path: str) -> None:
    """In the directories that the loader and package managers use."""
    assert is_installed_file(path)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/usr/lib/python3/dist-packages/django/db/models/base.py", True),
        ("/srv/app/.venv/bin/gunicorn", True),
        ("/srv/shop/node_modules/express/lib/router/index.js", True),
        ("file:///srv/shop/node_modules/@nestjs/core/injector.js", True),
        ("/srv/shop/shop.py", False),
        ("/srv/shop/bin/shop.js", False),
        ("<string>", False),
    ],
)
def test_scripts(path: str, expected: bool) -> None:
    """Also what only starts a package."""
    assert is_installed_script(path) is expected


@pytest.mark.parametrize(
    "path",
    [
        "/usr/sbin/nginx",
        "/usr/bin/memcached",
        "/srv/app/libshop.so",
        "/opt/shop/lib/libshop.so.1",
        "/usr/lib/firefox/libxul.so",
        "/usr/lib/postgresql/15/bin/postgres",
        "",
    ],
)
def test_files_of_programs(path: str) -> None:
    """Also plug-ins and libraries in separate directories."""
    assert not is_installed_file(path)


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("/usr/include/nlohmann/json.hpp:123", True),
        ("/root/.cargo/registry/src/index.crates.io-6f17d22bba15001f/bytes-1.5.0/src/bytes.rs:9", True),
        ("/root/go/pkg/mod/github.com/gorilla/mux@v1.8.0/mux.go:44", True),
        ("/srv/shop/include/shop.hpp:4", False),
        ("src/main.rs:5", False),
    ],
)
def test_source_that_is_compiled_in(location: str, expected: bool) -> None:
    """Headers, crates and modules."""
    assert is_installed_source(location) is expected
