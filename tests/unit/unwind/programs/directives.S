/* Call frame information that compilers hardly write. Nothing here is ever executed. */
        .text
        .globl _start
_start:
        .cfi_startproc
        .cfi_undefined rip
        nop
        .cfi_endproc

many_directives:
        .cfi_startproc
        nop
        .cfi_adjust_cfa_offset 8
        .cfi_offset rbp, -16
        .cfi_rel_offset rbx, 8
        nop
        .cfi_def_cfa rbp, 16
        .cfi_remember_state
        nop
        .cfi_restore rbp
        .cfi_def_cfa_register rsp
        .cfi_def_cfa_offset 65536
        nop
        .cfi_restore_state
        .cfi_same_value rbp
        nop
        .cfi_register rbp, r12
        nop
        .cfi_undefined rbp
        .cfi_register rbp, r11
        nop
        .cfi_offset rbp, -320
        .cfi_offset xmm15, -336
        nop
        .cfi_val_offset rbp, -8
        nop
        .cfi_def_cfa rax, 8
        nop
        .cfi_escape 0x2e, 0x80, 0x01            /* GNU_args_size 128 */
        .cfi_def_cfa rsp, 24
        nop
        .cfi_escape 0x12, 0x07, 0x7d            /* def_cfa_sf rsp, -3 * -8 */
        .cfi_escape 0x10, 0x06, 0x02, 0x76, 0x78  /* rbp saved at rbp - 8 */
        nop
        .cfi_escape 0x13, 0x70                  /* def_cfa_offset_sf -16 * -8 */
        .cfi_escape 0x11, 0x06, 0x03            /* offset_extended_sf rbp, 3 * -8 */
        nop
        .cfi_escape 0x2f, 0x06, 0x04            /* GNU_negative_offset_extended rbp */
        nop
        .cfi_escape 0x05, 0x06, 0x02            /* offset_extended rbp, 2 * -8 */
        nop
        .cfi_escape 0x06, 0x06                  /* restore_extended rbp */
        nop
        .cfi_escape 0x0f, 0x05, 0x77, 0x10, 0x06, 0x23, 0x18  /* *(rsp + 16) + 24 */
        nop
        .cfi_escape 0x16, 0x06, 0x02, 0x77, 0x08  /* rbp is rsp + 8 */
        nop
        .cfi_escape 0x0f, 0x03, 0x7b, 0x10, 0x06  /* *(r11 + 16) */
        nop
        .cfi_def_cfa rsp, 8
        .cfi_register rip, rdx
        nop
        .cfi_endproc

        .skip 5000, 0x90

spans_pages:
        .cfi_startproc
        .cfi_def_cfa_offset 16
        .skip 70000, 0x90
        .cfi_def_cfa_offset 32
        .skip 300, 0x90
        .cfi_def_cfa_offset 48
        .skip 4096 * 3, 0x90
        .cfi_endproc

        .skip 3
without_information:
        .skip 9000, 0x90

        .p2align 12
starts_at_a_page:
        .cfi_startproc
        .cfi_def_cfa_offset 64
        .skip 4096, 0x90
        .cfi_endproc

signal_frame:
        .cfi_startproc
        .cfi_signal_frame
        nop
        .cfi_endproc
        .section .note.GNU-stack, "", @progbits
