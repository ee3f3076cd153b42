"""V8, in Node.js: the JavaScript functions in a stack, read from outside.

Node.js 18 and 20 for real; see `constants` for what a build must say of itself, and `functions` for when what
is read is believed.
"""
