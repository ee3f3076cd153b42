"""What the daemon does with the processes it traces: attach, tick, report, detach.

Synchronous, and used from one thread at a time; service.py gives it that thread.
"""
