"""The choice of processes: by the rules of a policy, or by a request that names them."""
