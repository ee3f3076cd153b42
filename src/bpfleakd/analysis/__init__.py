"""What the figures mean. Pure: no kernel, no network, no files."""
