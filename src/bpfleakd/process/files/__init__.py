"""Opening files that a traced process names or maps: by rules, and without waiting for their servers."""
