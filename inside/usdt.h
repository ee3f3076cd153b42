/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * User-space probes in the format of SystemTap's sys/sdt.h, version 3 (.note.stapsdt), which every tracer finds.
 *
 * A probe is one `nop`, which every kernel emulates. A tracer raises the semaphore named by the note while it is
 * attached.
 */
#ifndef BPFLEAK_USDT_H
#define BPFLEAK_USDT_H

/* A semaphore (volatile unsigned short), or a structure of some. */
#define PROBE_SEMAPHORE(type, name) __attribute__((section(".probes"), visibility("hidden"))) type name

/* `semaphore` is its symbol, or an expression with the symbol. */
#define PROBE_NOTE_(provider, name, semaphore, arguments)                               \
	"990:	nop\n"                                                                  \
	"	.pushsection .note.stapsdt, \"\", \"note\"\n"                           \
	"	.balign 4\n"                                                            \
	"	.4byte 992f - 991f, 994f - 993f, 3\n"                                   \
	"991:	.asciz \"stapsdt\"\n"                                                   \
	"992:	.balign 4\n"                                                            \
	"993:	.8byte 990b\n"                                                          \
	"	.8byte _.stapsdt.base\n"                                                \
	"	.8byte " #semaphore "\n"                                                \
	"	.asciz \"" #provider "\"\n"                                             \
	"	.asciz \"" #name "\"\n"                                                 \
	"	.asciz \"" arguments "\"\n"                                             \
	"994:	.balign 4\n"                                                            \
	"	.popsection\n"                                                          \
	"	.ifndef _.stapsdt.base\n"                                               \
	"	.pushsection .stapsdt.base, \"aG\", \"progbits\", .stapsdt.base, comdat\n" \
	"	.weak _.stapsdt.base\n"                                                 \
	"	.hidden _.stapsdt.base\n"                                               \
	"_.stapsdt.base: .space 1\n"                                                    \
	"	.size _.stapsdt.base, 1\n"                                              \
	"	.popsection\n"                                                          \
	"	.endif\n"

#define PROBE1(provider, name, semaphore, first) \
	__asm__ volatile(PROBE_NOTE_(provider, name, semaphore, "8@%%rdi") : : "D"(first) : "memory")
#define PROBE3(provider, name, semaphore, first, second, third)                              \
	__asm__ volatile(PROBE_NOTE_(provider, name, semaphore, "8@%%rdi 8@%%rsi 8@%%rdx")   \
			 :                                                                   \
			 : "D"(first), "S"(second), "d"(third)                               \
			 : "memory")

#endif
