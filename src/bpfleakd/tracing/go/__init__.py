"""Tracing of Go programs: heap profile, goroutines, and the switch of the profile."""
