"""Unwinding without frame pointers: call frame information made into tables that BPF can search.

    section bytes ── cfi, eh_frame_hdr ──> CIEs and FDEs ── instructions, expressions ──> rules
                                                                                            │
    kernel maps <── rules.RuleSet, table.UnwindTable <── build (cache on disk) <────────────┘

Everything here is for x86-64 (another machine is another set of rules) and none of it touches the kernel.
"""
