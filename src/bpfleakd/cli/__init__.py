"""The two commands: `bpfleakd` (the daemon) and `bpfleakctl` (the user's command)."""
