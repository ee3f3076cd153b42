"""structlog, asyncio and hashlib without what a daemon does not need: import this module before them.

A None in place of a module makes its import fail, which these are prepared for:
  - structlog.dev imports rich where it is installed, for colourful tracebacks: 5 MB of the 64 MB that the
    daemon may have resident, and 0.1 s at its start.
  - asyncio imports ssl, and hashlib OpenSSL's hash functions: 5 MB. The daemon serves a unix socket and plain
    TCP, and Python has its own hash functions.
"""

import importlib
import sys

# structlog imports asyncio.
for _wanted, _unwanted in (("asyncio", "ssl"), ("hashlib", "_hashlib"), ("structlog", "rich")):
    if not {_wanted, _unwanted} & sys.modules.keys():
        sys.modules[_unwanted] = None  # type: ignore[assignment]
        importlib.import_module(_wanted)
        del sys.modules[_unwanted]
