"""Go: what the file of a program says of its code, whatever was stripped.

The parts, each on top of the ones before:
  build_info   which Go version made a file
  line_table   functions, lines and inlined calls, from .gopclntab, which no stripping removes
  module_data  where the parts of a program are
  layouts      what the runtime's structures look like, by version
  code         all of these
"""
