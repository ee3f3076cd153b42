"""Parsers for data that traced processes control, in unprivileged helper processes.

A helper has no capabilities, no file system and a seccomp allow-list; it receives open descriptors, never
paths, and answers in length-prefixed messages. The daemon bounds and checks all its answers.
"""
