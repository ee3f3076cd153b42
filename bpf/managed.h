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
 * The words of the frame lie on the stack, so the copy of the stack serves them. They are read from below upwards and
 * before the caller's, as the walk goes. Only what an object contains is read by itself. All goes into the memory of
 * the walk, not into locals, and both words enter the stack by the same way, so the verifier has few paths to follow.
 */

/* V8 tags pointers to its objects with the lowest bit. */
#define TAG 1

/*
 * Read the words of a frame: each is at the offset from rbp that it has before. A loop, because each copy of
 * read_word() multiplies what the verifier follows; the result is in the memory of the walk for the same reason.
 */
static __always_inline void read_frame(struct walk_scratch *scratch, volatile struct walk_state *walk)
{
	u32 number, round = 0;
	volatile u64 *place;
	u64 word;

	for (number = 0; number < MANAGED_WORDS; number = forget(scratch, number + 1)) {
		BOUND(round, MANAGED_WORDS, out);
		place = &walk->managed.words[forget(scratch, number) & (MANAGED_WORDS_ROOM - 1)];
		if (!read_word(scratch, walk->bp + *place, &word)) {
			walk->managed.take = 0;
			break;
		}
		*place = word;
	}
out:
	return;
}

/* Read the words of a frame, and record next what identifies its function. */
static __always_inline void note_managed(struct walk_scratch *scratch, volatile struct walk_state *walk,
					 const struct unwind_rule *rule, u32 rule_number)
{
	volatile u64 *words = walk->managed.words;

	/* What the rule does not name is read at rbp, and not used. */
	words[MANAGED_WORD_POSITION] = rule->position_slot * (s64)sizeof(u64);
	/* Only what is negative is in the frame. */
	words[MANAGED_WORD_CHECK] = (s64)(rule->rbp_offset & rule->rbp_offset >> 31);
	words[MANAGED_WORD_OBJECT] = (s64)rule->cfa_offset;
	words[MANAGED_WORD_ABOVE] = rule->cfa_offset + (s64)sizeof(u64);
	words[MANAGED_WORD_CALLER] = rule->caller_slot * (s64)sizeof(u64);
	walk->managed.rule = rule_number;
	walk->managed.take = TAKE_OBJECT;
	read_frame(scratch, walk);
	words[MANAGED_WORD_CALLER] &= -(u64)!!rule->caller_slot;
}

/* The caller's sp after the step to it, if arguments have moved it. */
static __always_inline void set_callers_sp(volatile struct walk_state *walk)
{
	if (walk->managed.take && walk->managed.words[MANAGED_WORD_CALLER] > walk->sp)
		walk->sp = walk->managed.words[MANAGED_WORD_CALLER];
}

/* Read `bytes` bytes of an object into a word of the walk; returns whether that failed. */
static __always_inline bool read_object(volatile struct walk_state *walk, u32 number, u32 bytes, u64 address)
{
	u64 word = 0;
	bool has_failed = read_user(&word, bytes, (void *)address);

	walk->managed.words[number] = word;
	return has_failed;
}

/* The next word of the last frame; 0 if there is none. */
static __always_inline u64 take_managed(volatile struct walk_state *walk)
{
	volatile u64 *words = walk->managed.words;
	u32 number = walk->managed.rule, take = walk->managed.take;
	struct unwind_rule *rule = unwind_rules.lookup(&number);
	u64 tags;

	walk->managed.take = 0;
	if (!rule)
		return 0;
	if (take == TAKE_POSITION)
		return MANAGED_POSITION | (words[MANAGED_WORD_POSITION] & ~MANAGED_POSITION);
	/*
	 * Above the function, a JavaScript frame has a context; any other frame has its kind there, without a tag.
	 */
	tags = rule->cfa_kind == CFA_MANAGED_TAGGED ? TAG : 0;
	if ((words[MANAGED_WORD_OBJECT] & words[MANAGED_WORD_ABOVE] & tags) != tags)
		return 0;
	if (rule->cfa_addend &&
	    read_object(walk, MANAGED_WORD_OBJECT, sizeof(u64), words[MANAGED_WORD_OBJECT] + rule->cfa_addend))
		return 0;
	if (!rule->rbp_offset)
		words[MANAGED_WORD_CHECK] = 0;
	if (!words[MANAGED_WORD_OBJECT] || (words[MANAGED_WORD_OBJECT] & tags) != tags ||
	    (rule->rbp_offset > 0 &&
	     read_object(walk, MANAGED_WORD_CHECK, sizeof(u32), words[MANAGED_WORD_OBJECT] + rule->rbp_offset)))
		return 0;
	walk->managed.take = rule->position_slot ? TAKE_POSITION : 0;
	return MANAGED_OBJECT |
	       hash_frame(0, (u32)words[MANAGED_WORD_CHECK]) >> (64 - MANAGED_CHECK_BITS) << MANAGED_ADDRESS_BITS |
	       (words[MANAGED_WORD_OBJECT] & ((1ULL << MANAGED_ADDRESS_BITS) - 1));
}
