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
 * Each call takes one step, so that the walk's own loop bounds all of it, and the verifier has few ways to follow.
 */

/* V8 tags pointers to its objects with the lowest bit. */
#define TAG 1

/* Go to the caller, and have what the frame is of recorded next. */
static __always_inline int step_from_managed(struct walk_scratch *scratch, volatile struct walk_state *walk,
					     u32 rule_number)
{
	walk->managed.frame = walk->bp;
	walk->managed.rule = rule_number;
	walk->managed.phase = MANAGED_BEGINS;
	return step_by_frame_pointer(scratch, walk);
}

/* Where the word of a phase is; 0: nothing is to be read for it. */
static __always_inline u64 place_of_phase(const struct unwind_rule *rule, u32 phase, u64 frame)
{
	s64 offset = 0;

	if (phase == MANAGED_BEGINS)
		offset = rule->caller_slot * (s64)sizeof(u64);
	else if (phase == MANAGED_KIND && rule->cfa_kind == CFA_MANAGED_TAGGED)
		offset = -(s64)sizeof(u64);
	else if (phase == MANAGED_CLOSURE)
		offset = rule->cfa_offset;
	else if (phase == MANAGED_PLACE)
		offset = rule->position_slot * (s64)sizeof(u64);
	return offset ? frame + offset : 0;
}

/*
 * Go from one phase to the next; those that the rule has nothing for change nothing. What is known lies in the walk's
 * own memory, where the verifier does not follow it from phase to phase.
 */
static __always_inline void take_managed(struct thread *thread, volatile struct walk_state *walk)
{
	struct walk_scratch *scratch = &thread->scratch;
	u32 number = walk->managed.rule, phase;
	struct unwind_rule *rule = unwind_rules.lookup(&number);
	u64 word, check = 0;

	if (!rule)
		goto ends;
	walk->managed.place = place_of_phase(rule, walk->managed.phase, walk->managed.frame);
	word = walk->managed.object;
	if (walk->managed.place && !read_word(scratch, walk->managed.place, &word))
		goto ends;
	walk->managed.word = word;
	word = walk->managed.word;
	phase = walk->managed.phase;
	walk->managed.phase = phase + 1;
	if (phase == MANAGED_BEGINS) {
		if (walk->managed.place && word > walk->managed.frame)
			walk->sp = word;
	} else if (phase == MANAGED_KIND) {
		/* A JavaScript frame has a context there, and any other the kind of the frame, which has no tag. */
		if (walk->managed.place && !(word & TAG))
			goto ends;
	} else if (phase == MANAGED_CLOSURE) {
		walk->managed.object = word;
	} else if (phase == MANAGED_FUNCTION) {
		if (rule->cfa_addend && read_user(&word, sizeof(word), (void *)(word + rule->cfa_addend)))
			goto ends;
		if (!word || (rule->cfa_kind == CFA_MANAGED_TAGGED && !(word & TAG)))
			goto ends;
		walk->managed.object = word;
	} else if (phase == MANAGED_CHECK) {
		if (rule->rbp_offset && read_user(&check, sizeof(u32), (void *)(word + rule->rbp_offset)))
			goto ends;
		check = hash_frame(0, check) >> (64 - MANAGED_CHECK_BITS) << MANAGED_ADDRESS_BITS;
		push_frame(thread, walk, MANAGED_OBJECT | check | (word & ((1ULL << MANAGED_ADDRESS_BITS) - 1)));
	} else {
		if (walk->managed.place)
			push_frame(thread, walk, MANAGED_POSITION | (word & ~MANAGED_POSITION));
		goto ends;
	}
	return;
ends:
	walk->managed.phase = NOT_MANAGED;
}
