"""The verdicts on a traced process: what is measured when, and what is kept of it."""
