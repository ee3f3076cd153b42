"""A traced process from when it is taken on, through its turns in every tick, to its last report."""
