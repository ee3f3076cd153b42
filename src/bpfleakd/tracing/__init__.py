"""One process from attach to detach or exit, and its hand-over to the next daemon.

Synchronous, and used from one thread at a time; `daemon.worker` provides that thread.
"""
