"""The commands of bpfleakctl: each module has `add_parser(commands)` and `run(arguments) -> exit code`."""
