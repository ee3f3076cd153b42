/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The interface to the daemon: tables for unwinding, and the words of managed frames in stacks. */
#ifndef BPFLEAKD_ABI_UNWIND_H
#define BPFLEAKD_ABI_UNWIND_H

/*
 * Unwind tables: src/bpfleakd/unwind/table.py explains rows and page indexes, rules.py explains rules. Tables lie in
 * shards of equal size, each table (or piece of a large one) in one shard; its page index holds word numbers of the
 * shard.
 */
#define UNWIND_PAGE_BITS 12
#define UNWIND_PAGE_MASK 0xfff
#define UNWIND_SHARD_WORDS 0x40000	/* 1 MiB; a power of 2 */
#define MAX_UNWIND_MAPPINGS 1024	/* per process; a power of 2 */

enum cfa_kind {
	CFA_GAP,
	CFA_STOP,
	CFA_END,
	CFA_RSP,
	CFA_RBP,
	CFA_PLT,
	CFA_DEREF_RSP,
	CFA_DEREF_RBP,
	CFA_SIGNAL,
	CFA_MANAGED,
	CFA_MANAGED_TAGGED,
};

enum rbp_kind {
	RBP_SAME,
	RBP_AT_CFA,
	RBP_AT_RBP,
	RBP_AT_RSP,
	RBP_UNDEFINED,
};

/* The number of the rule for addresses without a table. */
#define RULE_GAP 0

/*
 * For CFA_MANAGED and CFA_MANAGED_TAGGED, frames of a runtime's code with a frame pointer, the fields are places.
 * `cfa_offset`: the object that identifies the function, from rbp. `cfa_addend`: another object in that one, which is
 * recorded in its place (0: none). `rbp_offset`: 4 bytes that distinguish the recorded object from others, in the
 * object or, if negative, in the frame, from rbp (0: none). `position_slot` and `caller_slot`: the position in the
 * function and the caller's rsp, in words from rbp (0: none, and rbp + 16). managed.h.
 */
struct unwind_rule {
	__u8 cfa_kind;
	__u8 rbp_kind;
	__s8 position_slot;
	__s8 caller_slot;
	__s32 cfa_offset;
	__s32 cfa_addend;
	__s32 rbp_offset;
};

/*
 * The words after the address of a managed frame in a stack: MANAGED_OBJECT, the object's address, and above it bits
 * of a hash that distinguishes it from others; then, if the rule has a position_slot, MANAGED_POSITION and the
 * position.
 */
#define MANAGED_OBJECT (2ULL << 61)
#define MANAGED_POSITION (3ULL << 61)
#define MANAGED_ADDRESS_BITS 47
#define MANAGED_CHECK_BITS 14

struct unwind_shard {
	__u32 words[UNWIND_SHARD_WORDS];
};

/*
 * Executable memory with a table: address - bias is the file's own address; the page of that plus index_base (modulo
 * 2^32) is the word in the shard where its rows begin. `gap_rule` applies where the table has no row. With ONE_RULE
 * in place of a shard, index_base is the number of the rule for the whole mapping.
 */
#define ONE_RULE 0xffff
/* In place of a shard: the table belongs to code that was here before. */
#define NO_SHARD 0xfffe

struct unwind_mapping {
	__u64 start;
	__u64 end;
	__u64 bias;
	__u16 shard;
	__u16 gap_rule;
	__u32 index_base;
};

/*
 * `pending`: tables of further mappings are still being built. `known_rules` caches the walker's results, by a hash
 * of the address: the address, and in the low KNOWN_RULE_BITS the number of its rule. It is valid for this list of
 * mappings and is replaced with it.
 */
#define KNOWN_RULES_BITS 10
#define KNOWN_RULE_BITS 16

struct unwind_mappings {
	__u32 count;
	__u32 pending;
	struct unwind_mapping sorted[MAX_UNWIND_MAPPINGS];
	__u64 known_rules[1 << KNOWN_RULES_BITS];
};

#endif
