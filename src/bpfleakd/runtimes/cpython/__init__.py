"""CPython: the Python functions and lines in a stack, read from outside.

Versions 3.9 to 3.14, stripped or not, as a program or as libpython. `interpreter` describes how an
interpreter is found and when its layout is trusted.
"""
