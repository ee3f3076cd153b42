"""Parsers of what a traced process controls, in helper processes without privileges.

A helper has no capabilities, no file system and a seccomp allow-list; it receives open descriptors, never
paths, and answers in length-prefixed messages. Whatever it answers is bounded and checked again here.
"""
