"""The .NET runtime (CoreCLR, .NET Core 3.0 and later), without any start option.

All data comes from the runtime's diagnostics socket. The target controls it, so helpers parse it:

- `diagnostics` speaks the protocol: commands, and the session that a command begins;
- `stream_jobs` are what helpers do with a session; `nettrace` reads the stream, `events` its payloads,
  `rundown`, `survivors` and `heap_walk` make something of them: pure and bounded;
- `method_look` and `methods` give names, `source_lines` file and line, by `line_jobs`, `assembly` and
  `portable_pdb`;
- `live_heap` follows what collections leave alive, `allocations` who allocates what survives them;
- `heap_types` counts the objects of the whole heap, on request.

https://github.com/dotnet/diagnostics/blob/main/documentation/design-docs/ipc-protocol.md
"""
