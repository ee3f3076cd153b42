"""Attacks of one process on the daemon and on others: each is seen to fail while a bystander is traced."""
