"""V8 in Node.js: the JavaScript functions of a stack, and the heap of objects, read from outside.

Tested with Node.js 18 and 20. `constants` has what a build must publish about itself, `functions` when data
is accepted.
"""
