"""Language runtimes, one sub-package each: `dotnet`, `jvm`, `v8`, `cpython`, `go`.

Every sub-package has the same interface, `runtime.Runtime`, so reading one shows how to add the next:

- it is detected from the mapped files of a process, and states its version;
- it offers what it can of methods, frames, live heap and types, and None for what it cannot;
- it states what would give more (a flag, a capability), as a sentence for the user.

A runtime's errors do not spread: the process is then traced as a native program, and answers state what is
missing and why. Data from a process or its sockets is untrusted: bounded, checked, made printable.
"""
