"""Decides which processes to trace, when and how densely: policy, events, automatic tracing, overhead."""
