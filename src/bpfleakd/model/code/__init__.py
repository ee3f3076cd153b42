"""Code of a process: where it is mapped, what is called there, and stacks that lead through it."""
