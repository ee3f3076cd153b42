"""What the figures mean. No kernel access, no network, no files."""
