"""Which processes to trace, when and how densely: policy, process events, automatic tracing, overhead."""
