"""The tables: what is outstanding, by call site, and how it came to be. Pure: no kernel, no files."""
