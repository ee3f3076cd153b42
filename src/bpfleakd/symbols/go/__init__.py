"""Go: the data on its code in a program's file, which stripping does not remove.

The parts, each on top of the ones before:
  build_info   which Go version made a file
  line_table   functions, lines and inlined calls, from .gopclntab, which no stripping removes
  module_data  where the parts of a program are
  layouts      what the runtime's structures look like, by version
  code         all of these
"""
