"""The kernel side: loading programs, linking them to targets, reading their maps."""
