"""Language runtimes, one sub-package each: `dotnet`, `jvm`, `v8`, `cpython`, `go`.

Every sub-package has the same face, `runtime.Runtime`, so that the next one can be added by reading one:

- it is detected from the mapped files of a process, and states its version;
- it offers what it can of methods, frames, live heap and types, and None for what it cannot;
- it states what would give more (a flag, a capability), as a sentence for the user.

A runtime's errors stay its own: the process is then traced as a native program, and the answer says what is
missing and why. What is read from a process or its sockets is untrusted: bounded, checked, made printable.
"""
