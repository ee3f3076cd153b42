"""Go: the heap profile and the goroutines of a running program, read from its memory.

The runtime keeps a sampled heap profile, with stacks, as of the last garbage collection. Reading it costs the
program nothing. Only `ProfileSwitch` writes into a program, on explicit request.

The parts, each on top of the ones before (symbols/go reads the file of a program):
  variables     where the runtime's variables are
  memory        bounded reading of a process
  heap_profile  the buckets of the profile
  goroutines    the goroutines, and what they wait for
  program       a running program
"""
