"""Code of a process: its mappings, its functions, and the stacks that contain them."""
