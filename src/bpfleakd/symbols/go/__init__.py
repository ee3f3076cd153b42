"""Go: the data on its code in a program's file, which stripping does not remove.

The parts, each on top of the ones before:
  line_table   functions, lines and inlined calls, from .gopclntab, which no stripping removes
  module_data  where the parts of a program are
  code         all of these, for the Go version that made the file
"""
