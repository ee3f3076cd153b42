"""The two commands: `bpfleakd` (the daemon) and `bpfleakctl` (what people type)."""
