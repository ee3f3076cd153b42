"""structlog without rich: import this module before anything else imports structlog.

structlog.dev imports rich where it is installed, for colourful tracebacks: 0.1 s at the start of the daemon,
and 5 MB of the 64 MB that it may have resident. A None in place of rich makes that import fail, which
structlog is prepared for.
"""

import sys

_HIDE_RICH = not {"structlog", "rich"} & sys.modules.keys()
if _HIDE_RICH:
    sys.modules["rich"] = None  # type: ignore[assignment]
import structlog  # noqa: E402, F401

if _HIDE_RICH:
    del sys.modules["rich"]
