/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Frames of a runtime's own code, where the daemon has said so (struct unwind_rule): they keep a frame pointer, and in
 * the frame a pointer to the object that says which function it is of. That goes into the stack behind the frame's
 * address, so that different functions that share code, as all do that are interpreted, are different stacks. The
 * daemon gives it a name later.
 *
 * A collector may move objects and give their memory to others: so the word also has bits of a hash of what the object
 * holds. What cannot be read, or is not tagged as it should be, is left out, and the frame has its address alone.
 *
 * All that is read lies in the walk's own memory, and both words come by the same way into the stack: so the verifier
 * has few ways to follow.
 */

/* V8 tags pointers to its objects with the lowest bit. */
#define TAG 1

/* Go to the caller, and have what the frame is of recorded next. */
static __always_inline int step_from_managed(struct walk_scratch *scratch, volatile struct walk_state *walk,
					     u32 rule_number)
{
	walk->managed.frame = walk->bp;
	walk->managed.rule = rule_number;
	walk->managed.take = TAKE_OBJECT;
	return step_by_frame_pointer(scratch, walk);
}

/* Read `bytes` bytes of the process into a word of the walk's; returns whether that failed. */
static __always_inline bool read_managed(volatile struct walk_state *walk, u32 word, u32 bytes, u64 address)
{
	return read_user((void *)&walk->managed.words[word], bytes, (void *)address);
}

/* The next word of the last frame; 0: there is none. */
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
	 * Above its function a JavaScript frame has a context, and any other the kind of the frame, which has no tag.
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
