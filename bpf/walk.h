/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The stack walker: from the registers at a point in the program to the list of its callers.
 *
 * tests/unit/unwind/reference_walk.py does the same in Python and states the rules; tests compare both with each other
 * and with gdb. A step takes three registers to those of the caller: ip, sp, bp. The unwind tables say how; the daemon
 * makes them from the files' call frame information. Code without any (generated at run time, or assembly) is assumed
 * to keep a frame pointer in bp.
 *
 * About the verifier: it follows every value through every loop and would never finish. So
 *  - loops are bounded by may_goto; on older kernels by a constant, and tail calls continue the walk;
 *  - the state of a walk is in map memory (volatile), where the verifier does not follow values;
 *  - forget() makes an index unknown, and a mask then bounds it.
 */

#ifdef WALK_BY_TAIL_CALLS
/* A constant bound. The verifier follows each round, so one program walks only a part of the stack. */
#define FRAMES_A_PROGRAM 16
#define BOUND(round, rounds, out) \
	do {                      \
		if ((round)++ >= (rounds)) goto out; \
	} while (0)
#else
/*
 * may_goto (Linux 6.9) leaves the loop after it has run for too long: one counter for all loops, 8 million rounds. The
 * instruction is written as bytes, because LLVM 14 has no name for it.
 */
#define FRAMES_A_PROGRAM MAX_FRAMES
#define BOUND(round, rounds, out)                                                           \
	asm volatile goto("1: .byte 0xe5; .byte 0; .long ((%l[" #out "] - 1b - 8) / 8) & 0xffff; .short 0" \
			  : : : : out)
#endif

/* log2 of the largest list and of the largest page, plus the round that finds the search ended. */
#define MAPPING_SEARCH_ROUNDS 11
#define ROW_SEARCH_ROUNDS 13

/* In place of the address of a copy if there is none: no program has memory near it. */
#define NO_COPY (1ULL << 63)

/* The same number, of which the verifier knows nothing any more. */
static __always_inline u32 forget(struct walk_scratch *scratch, u32 number)
{
	*(volatile u32 *)&scratch->number = number;
	return *(volatile u32 *)&scratch->number;
}

/*
 * Read a word of the stack. Frames are near each other, so this copies the STACK_COPY_BYTES around the word, which
 * costs little more than the word alone, and the copy serves most further reads. It is aligned, so it is of one page:
 * the page above the last frame may not exist, and a read that fails costs 9 us. A word that is not aligned is read
 * alone, into the copy too and without a branch: each path through this function multiplies what the verifier follows
 * (0.4 s for all programs; 1.7 s with a branch here).
 */
static __always_inline bool read_word(struct walk_scratch *scratch, u64 address, u64 *word)
{
	u64 alone = ((address & 7) + 7) >> 3;
	u64 distance = (address - scratch->copy_address) | -alone;
	u32 bytes;

	if (distance >= STACK_COPY_BYTES) {
		distance = address & (STACK_COPY_BYTES - 1) & (alone - 1);
		scratch->copy_address = (address - distance) | alone << 63;
		/* A masked number: the verifier of Linux 6.1 loses the bounds of any other. */
		bytes = (forget(scratch, alone - 1) & (STACK_COPY_BYTES - sizeof(u64))) + sizeof(u64);
		if (read_user(scratch->copy, bytes, (void *)(address - distance))) {
			scratch->copy_address = NO_COPY;
			return false;
		}
	}
	*word = scratch->copy[(forget(scratch, distance) >> 3) & (STACK_COPY_WORDS - 1)];
	return true;
}

/* The mapping that contains `ip`; NULL if no mapping with a table does. */
static __always_inline struct unwind_mapping *find_mapping(struct walk_scratch *scratch,
							   struct unwind_mappings *mappings, u64 ip)
{
	struct unwind_mapping *mapping;
	u32 low = 0, high = mappings->count, middle, round = 0;

	/* Search the first mapping that ends behind ip. */
	while (low < high) {
		BOUND(round, MAPPING_SEARCH_ROUNDS, found);
		middle = forget(scratch, (low + high) >> 1);
		if (mappings->sorted[middle & (MAX_UNWIND_MAPPINGS - 1)].end <= ip)
			low = middle + 1;
		else
			high = middle;
		low = forget(scratch, low);
		high = forget(scratch, high);
	}
found:
	low = forget(scratch, low);
	if (low >= mappings->count)
		return NULL;
	mapping = &mappings->sorted[low & (MAX_UNWIND_MAPPINGS - 1)];
	return mapping->start <= ip ? mapping : NULL;
}

/* The number of the rule at `ip`; RULE_GAP if there is no table. */
static __always_inline u32 find_rule(struct walk_scratch *scratch, struct unwind_mappings *mappings, u64 ip)
{
	struct unwind_mapping *mapping = find_mapping(scratch, mappings, ip);
	u32 low, high, middle, page, address, round = 0;
	struct unwind_shard *shard;
	u32 zero = 0, number;
	void *shard_map;
	u64 vaddr;

	if (!mapping)
		return RULE_GAP;
	number = mapping->shard;
	if (number == ONE_RULE)
		return forget(scratch, mapping->index_base);
	shard_map = unwind_shards.lookup(&number);
	if (!shard_map)
		return RULE_GAP;
	shard = bpf_map_lookup_elem(shard_map, &zero);
	if (!shard)
		return RULE_GAP;

	vaddr = ip - mapping->bias;
	address = vaddr & UNWIND_PAGE_MASK;
	page = (u32)(vaddr >> UNWIND_PAGE_BITS) + mapping->index_base;
	low = shard->words[forget(scratch, page) & (UNWIND_SHARD_WORDS - 1)];
	high = shard->words[forget(scratch, page + 1) & (UNWIND_SHARD_WORDS - 1)];
	/* The row at `low` is at or before the address, the row at `high` behind it. */
	while (high - low > 1) {
		BOUND(round, ROW_SEARCH_ROUNDS, found);
		middle = forget(scratch, (low + high) >> 1);
		if ((shard->words[middle & (UNWIND_SHARD_WORDS - 1)] & UNWIND_PAGE_MASK) <= address)
			low = middle;
		else
			high = middle;
		low = forget(scratch, low);
		high = forget(scratch, high);
	}
found:
	number = shard->words[forget(scratch, low) & (UNWIND_SHARD_WORDS - 1)] >> UNWIND_PAGE_BITS;
	return number == RULE_GAP ? mapping->gap_rule : number;
}

#if MAX_UNWIND_RULES > (1 << KNOWN_RULE_BITS)
#error "the number of a rule has no room beside its address"
#endif

/*
 * find_rule with a cache, since programs walk through the same few hundred return addresses again and again. An entry
 * is one word, written and read as a whole, so threads need no lock. An address that leaves no room in the word (only
 * page tables of five levels have such) is searched each time. The result passes forget(), because otherwise the states
 * of the two ways never become equal to the verifier (a million instructions in a pid namespace).
 */
static __always_inline u32 known_rule(struct walk_scratch *scratch, struct unwind_mappings *mappings, u64 ip)
{
	u64 place = (ip * 0x9e3779b97f4a7c15ULL) >> (64 - KNOWN_RULES_BITS);
	volatile u64 *known = &mappings->known_rules[forget(scratch, place) & ((1 << KNOWN_RULES_BITS) - 1)];
	u64 word = *known;
	u32 number;

	if (word >> KNOWN_RULE_BITS == ip)
		return forget(scratch, word & ((1 << KNOWN_RULE_BITS) - 1));
	number = find_rule(scratch, mappings, ip);
	if (ip >> (64 - KNOWN_RULE_BITS) == 0)
		*known = ip << KNOWN_RULE_BITS | number;
	return forget(scratch, number);
}

/* Each of these goes to the caller and returns -1. If the stack ends here, it returns the reason (enum stack_end). */

static __always_inline int step_by_frame_pointer(struct walk_scratch *scratch,
						 volatile struct walk_state *walk)
{
	u64 frame_pointer = walk->bp, bp, return_address;

	/* Stacks grow down, so a caller's frame is above. Anything else is no frame pointer. */
	if (frame_pointer == 0 || frame_pointer < walk->sp || (frame_pointer & 7))
		return END_FRAME_POINTER_END;
	if (!read_word(scratch, frame_pointer, &bp) ||
	    !read_word(scratch, frame_pointer + sizeof(u64), &return_address))
		return END_FRAME_POINTER_END;
	walk->ip = return_address;
	walk->sp = frame_pointer + 2 * sizeof(u64);
	walk->bp = bp;
	walk->exact = false;
	return -1;
}

static __always_inline int step_to_interrupted(struct walk_scratch *scratch,
					       volatile struct walk_state *walk,
					       const struct unwind_rule *rule)
{
	u64 frame = walk->sp, ip, sp, bp;

	if (!read_word(scratch, frame + rule->cfa_addend, &ip) ||
	    !read_word(scratch, frame + rule->cfa_offset, &sp) ||
	    !read_word(scratch, frame + rule->rbp_offset, &bp))
		return END_READ_FAULT;
	walk->ip = ip;
	walk->sp = sp;
	walk->bp = bp;
	walk->exact = true;
	return -1;
}

static __always_inline int step_by_rule(struct walk_scratch *scratch, volatile struct walk_state *walk,
					const struct unwind_rule *rule)
{
	bool from_bp = rule->cfa_kind == CFA_RBP || rule->cfa_kind == CFA_DEREF_RBP;
	u64 bp = walk->bp, cfa, return_address;

	if ((from_bp || rule->rbp_kind == RBP_AT_RBP) && walk->bp == 0)
		return END_NO_RULE;
	cfa = (from_bp ? walk->bp : walk->sp) + rule->cfa_offset;
	if (rule->cfa_kind == CFA_DEREF_RSP || rule->cfa_kind == CFA_DEREF_RBP) {
		if (!read_word(scratch, cfa, &cfa))
			return END_READ_FAULT;
		cfa += rule->cfa_addend;
	} else if (rule->cfa_kind == CFA_PLT && (walk->ip & 15) >= rule->cfa_addend) {
		cfa += sizeof(u64);
	}
	if (cfa <= walk->sp)
		return END_NO_RULE;

	if (rule->rbp_kind == RBP_AT_CFA || rule->rbp_kind == RBP_AT_RBP) {
		u64 base = rule->rbp_kind == RBP_AT_CFA ? cfa : walk->bp;

		if (!read_word(scratch, base + rule->rbp_offset, &bp))
			return END_READ_FAULT;
	} else if (rule->rbp_kind == RBP_UNDEFINED) {
		bp = 0;
	}
	if (!read_word(scratch, cfa - sizeof(u64), &return_address))
		return END_READ_FAULT;
	walk->ip = return_address;
	walk->sp = cfa;
	walk->bp = bp;
	walk->exact = false;
	return -1;
}

/*
 * Add a frame to the hash of a stack: the multiply-and-shift step of MurmurHash64A. With 64 bits, the probability that
 * any two of 65,536 stacks have the same hash is 1e-10.
 */
static __always_inline u64 hash_frame(u64 hash, u64 ip)
{
	const u64 multiplier = 0xc6a4a7935bd1e995ULL;

	ip *= multiplier;
	ip ^= ip >> 47;
	ip *= multiplier;
	return (hash ^ ip) * multiplier;
}

static __always_inline void push_frame(struct thread *thread, volatile struct walk_state *walk, u64 word)
{
	u32 depth = walk->depth;

	thread->stack.frames[depth & (MAX_FRAMES - 1)] = word;
	walk->depth = depth + 1;
	walk->hash = hash_frame(walk->hash, word);
}

#include "managed.h"
#include "code.h"

static __always_inline int step(struct walk_scratch *scratch, struct unwind_mappings *mappings,
				volatile struct walk_state *walk)
{
	u32 number = RULE_GAP;
	struct unwind_rule *rule;
	int end;

	if (mappings)
		number = known_rule(scratch, mappings, walk->exact ? walk->ip : walk->ip - 1);
	rule = unwind_rules.lookup(&number);
	if (!rule)
		return END_NO_RULE;
	if (rule->cfa_kind == CFA_GAP || rule->cfa_kind >= CFA_MANAGED) {
		if (rule->cfa_kind >= CFA_MANAGED)
			note_managed(scratch, walk, rule, number);
		else {
			walk->python.loop_sp = NO_COPY;
			if (mappings && mappings->pending)
				walk->guessed = true;
		}
		end = step_by_frame_pointer(scratch, walk);
		set_callers_sp(walk);
	} else if (rule->cfa_kind == CFA_END)
		end = END_BOTTOM;
	else if (rule->cfa_kind == CFA_STOP)
		end = END_NO_RULE;
	else if (rule->cfa_kind == CFA_SIGNAL)
		end = step_to_interrupted(scratch, walk, rule);
	else
		end = step_by_rule(scratch, walk, rule);
	return end < 0 && walk->ip == 0 ? END_BOTTOM : end;
}

#include "python.h"

/*
 * Begin a walk at the return of a function: `function_ip` is the first frame and ip the second, so the immediate caller
 * is known in any case. If `function_ip` is 0, the walk begins at ip, the address of an instruction.
 */
static __always_inline void begin_walk_at(struct thread *thread, u64 function_ip, u64 ip, u64 sp, u64 bp)
{
	volatile struct walk_state *walk = &thread->scratch.walk;

	thread->scratch.copy_address = NO_COPY;
	thread->stack.frames[0] = function_ip;
	walk->ip = ip;
	walk->sp = sp;
	walk->bp = bp;
	walk->exact = !function_ip;
	walk->hash = hash_frame(MAX_FRAMES, function_ip);
	walk->depth = function_ip ? 1 : 0;
	walk->end = WALK_GOES_ON;
	walk->guessed = false;
	walk->managed.take = 0;
	begin_python(thread, walk);
}

static __always_inline void begin_walk(struct thread *thread, u64 function_ip, struct pt_regs *ctx)
{
	begin_walk_at(thread, function_ip, PT_REGS_IP(ctx), PT_REGS_SP(ctx), PT_REGS_FP(ctx));
}

/*
 * Continue the walk, into thread->stack. Afterwards walk.end is the reason why it ended, or WALK_GOES_ON if another
 * program must continue. `mappings` NULL: by frame pointers only.
 */
static __always_inline void walk_on(struct thread *thread, struct python *python,
				    struct unwind_mappings *mappings)
{
	volatile struct walk_state *walk = &thread->scratch.walk;
	u32 round = 0;
	u64 word;
	int end, next;

	for (;;) {
		if (walk->depth >= MAX_FRAMES) {
			walk->end = END_DEPTH;
			break;
		}
		BOUND(round, FRAMES_A_PROGRAM, out);
		if (walk->managed.take) {
			word = take_managed(walk);
			next = word ? PYTHON_WORD : PYTHON_SEARCHES;
		} else {
			next = next_is_python(thread, python, walk, &word);
		}
		switch (next) {
		case PYTHON_WORD:
			push_frame(thread, walk, word);
			continue;
		case PYTHON_SEARCHES:
			continue;
		}
		/* The step to a loop's caller may have ended the walk. The loop's Python frames are recorded already. */
		if (walk->end != WALK_GOES_ON)
			break;
		if (walk->python.phase != PYTHON_LOOP)
			push_frame(thread, walk, walk->ip);
		end = step(&thread->scratch, mappings, walk);
		if (end >= 0) {
			walk->end = end;
			if (walk->python.phase != PYTHON_LOOP)
				break;
		}
	}
out:
	return;
}

/*
 * After a walk: complete thread->stack and return the hash of its frames, never 0. A walk that guessed gets another
 * hash than one with the same frames that did not.
 */
static __always_inline u64 end_walk(struct process *process, struct thread *thread)
{
	volatile struct walk_state *walk = &thread->scratch.walk;

	thread->stack.depth = walk->depth;
	thread->stack.end = walk->end == WALK_GOES_ON ? END_DEPTH : walk->end;
	if (process->numbered_end)
		number_frames(process, thread);
	if (walk->guessed && thread->stack.end != END_READ_FAULT) {
		thread->stack.end = END_TABLE_PENDING;
		walk->hash = hash_frame(walk->hash, END_TABLE_PENDING);
	}
	return walk->hash ? walk->hash : 1;
}
