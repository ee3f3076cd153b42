"""Opens files that a traced process names or maps, safely and without waiting for their servers."""
