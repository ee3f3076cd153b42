"""Names for addresses: functions, modules, lines. Knows files and mappings, no kernel interface."""
