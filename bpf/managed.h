/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Frames of code that a runtime generated, where the daemon has said so (struct unwind_rule). They keep a frame
 * pointer, and the frame has a pointer to the object that identifies its function. All interpreted functions share
 * code, so the object goes into the stack behind the frame's address: different functions are then different stacks.
 * The daemon names it later.
 *
 * A garbage collector may move objects and reuse their memory, so the word also has bits of a hash of what the object
 * contains. If something cannot be read or is not tagged as expected, the frame has its address alone.
 *
 * What is read goes into the memory of the walk, not into locals, and both words enter the stack by the same way, so
 * the verifier has few paths to follow.
 */

/* V8 tags pointers to its objects with the lowest bit. */
#define TAG 1

/* Go to the caller, and record next what identifies the function of the frame. */
static __always_inline int step_from_managed(struct walk_scratch *scratch, volatile struct walk_state *walk,
					     u32 rule_number)
{
	walk->managed.frame = walk->bp;
	walk->managed.rule = rule_number;
	walk->managed.take = TAKE_OBJECT;
	return step_by_frame_pointer(scratch, walk);
}

/* Read `bytes` bytes of the process into a word of the walk; returns whether that failed. */
static __always_inline bool read_managed(volatile struct walk_state *walk, u32 word, u32 bytes, u64 address)
{
	return read_user((void *)&walk->managed.words[word], bytes, (void *)address);
}

/* The next word of the last frame; 0 if there is none. */
static __always_inline u64 take_managed(volatile struct walk_state *walk)
{
	u64 frame = walk->managed.frame, tags;
	volatile u64 *words = walk->managed.words;
	u32 number = walk->managed.rule, take = walk->managed.take;
	struct unwind_rule *rule = unwind_rules.lookup(&number);

	walk->managed.take = 0;
	if (!rule)
		return 0;
	if (take == TAKE_POSITION) {
		if (read_managed(walk, 0, sizeof(u64), frame + rule->position_slot * (s64)sizeof(u64)))
			return 0;
		return MANAGED_POSITION | (words[0] & ~MANAGED_POSITION);
	}
	if (rule->caller_slot && !read_managed(walk, 2, sizeof(u64), frame + rule->caller_slot * (s64)sizeof(u64)) &&
	    words[2] > frame)
		walk->sp = words[2];
	/*
	 * Above the function, a JavaScript frame has a context; any other frame has its kind there, without a tag.
	 */
	tags = rule->cfa_kind == CFA_MANAGED_TAGGED ? TAG : 0;
	if (read_managed(walk, 0, 2 * sizeof(u64), frame + rule->cfa_offset) || (words[0] & words[1] & tags) != tags)
		return 0;
	if (rule->cfa_addend && read_managed(walk, 0, sizeof(u64), words[0] + rule->cfa_addend))
		return 0;
	words[1] = 0;
	if (!words[0] || (words[0] & tags) != tags ||
	    (rule->rbp_offset && read_managed(walk, 1, sizeof(u32), words[0] + rule->rbp_offset)))
		return 0;
	walk->managed.take = rule->position_slot ? TAKE_POSITION : 0;
	return MANAGED_OBJECT | hash_frame(0, words[1]) >> (64 - MANAGED_CHECK_BITS) << MANAGED_ADDRESS_BITS |
	       (words[0] & ((1ULL << MANAGED_ADDRESS_BITS) - 1));
}
