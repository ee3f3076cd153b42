"""prometheus_client as the daemon imports it."""

from __future__ import annotations

import subprocess
import sys


def test_the_exporter_loads_no_tls() -> None:
    """OpenSSL takes 4 MB; and ssl can be imported afterwards."""
    script = (
        "import sys; from bpfleakd import lean_imports; import bpfleakd.export.prometheus;"
        "print('ssl' in sys.modules, '_ssl' in sys.modules);"
        "import ssl; print(ssl.create_default_context().verify_mode)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["False False", "2"]
