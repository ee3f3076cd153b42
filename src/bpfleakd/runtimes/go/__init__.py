"""Go: the heap profile and the goroutines of a running program, read from its memory.

The runtime keeps a sampled heap profile, with stacks, as of the last garbage collection. Reading it costs the
program nothing. Nothing here writes into a program but `ProfileSwitch`, which is asked for explicitly.

The parts, each on top of the ones before (symbols/go reads the file of a program):
  variables     where the runtime's variables are
  memory        bounded reading of a process
  heap_profile  the buckets of the profile
  goroutines    who waits for what
  program       a running program
"""
