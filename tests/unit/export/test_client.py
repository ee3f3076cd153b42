"""prometheus_client as the daemon imports it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import prometheus_client


def test_the_exporter_loads_no_tls_and_no_web() -> None:
    """They take 6 MB; and they can be imported afterwards."""
    script = (
        "import sys; from bpfleakd import lean_imports; import bpfleakd.export.prometheus;"
        "print('ssl' in sys.modules, '_ssl' in sys.modules);"
        "print('http.client' in sys.modules, 'email' in sys.modules);"
        "import ssl; print(ssl.create_default_context().verify_mode);"
        "import urllib.request, http.server, wsgiref.simple_server;"
        "print(urllib.request.Request('http://localhost/').type, http.server.HTTPServer.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["False False", "False False", "2", "http HTTPServer"]


def test_a_version_that_needs_more_is_imported_whole(tmp_path) -> None:
    """Of prometheus_client: another release may use what the stand-ins lack."""
    package = tmp_path / "prometheus_client"
    shutil.copytree(Path(prometheus_client.__file__).parent, package)
    with (package / "exposition.py").open("a") as module:
        module.write("\nassert ssl.create_default_context().verify_mode\n")
    script = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r});"
        "from bpfleakd.export.client import as_plain_text; print('ssl' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
