"""Compilation by bcc: its source text, and a cache of the programs."""
