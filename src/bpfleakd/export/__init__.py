"""Exporters: turn a report or a snapshot into bytes."""
