"""Tests of inside/, the library for sampling inside a program; they need gcc."""
