"""Exporters: a report or a snapshot in, bytes out."""
