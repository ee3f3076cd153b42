"""Answers about a traced process: report, blocks, scan, diff, history, overview."""
