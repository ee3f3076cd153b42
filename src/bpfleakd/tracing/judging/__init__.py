"""The verdicts on a traced process: when they are computed, and what is stored of them."""
