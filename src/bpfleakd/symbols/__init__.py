"""Names for addresses: functions, modules, lines. Uses files and mappings, no kernel interface."""
