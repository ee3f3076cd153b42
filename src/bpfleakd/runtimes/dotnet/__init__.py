"""The .NET runtime (CoreCLR, .NET Core 3.0 and later), started without any flag.

Everything comes over the runtime's diagnostics socket:

- `diagnostics` speaks its protocol, `nettrace` reads the streams, `events` their payloads: pure and bounded;
- `rundown` and `methods` give names, `portable_pdb` file and line;
- `live_heap` follows what collections leave alive, `allocations` who allocates what survives them;
- `heap_types` counts the objects of the whole heap, on request.

https://github.com/dotnet/diagnostics/blob/main/documentation/design-docs/ipc-protocol.md
"""
