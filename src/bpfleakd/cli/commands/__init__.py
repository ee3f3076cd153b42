"""The commands of bpfleakctl, each a module with its line of the help, `HELP`, and two functions:

`add_arguments(parser)` declares its arguments, `run(arguments)` returns its exit code.
"""
