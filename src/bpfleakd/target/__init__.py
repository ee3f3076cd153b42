"""The processes that are traced, as /proc shows them."""
