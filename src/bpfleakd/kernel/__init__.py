"""The kernel side: loads programs, links them to targets, reads their maps."""
