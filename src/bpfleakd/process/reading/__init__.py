"""Reads files and memory of a traced process that can make a reader wait."""
