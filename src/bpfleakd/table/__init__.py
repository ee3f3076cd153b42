"""The tables of outstanding memory by call site, and their histories. No kernel access, no files."""
