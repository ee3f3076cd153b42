/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The stack walker: from the registers at a point in the program to the list of its callers.
 *
 * step() finds one caller. It follows the frame-pointer chain; other ways of finding the caller of a
 * frame belong there too, and nothing else in this file needs to know of them.
 */

struct walk_state {
	u64 ip;
	u64 sp;
	u64 bp;
};

/* Go to the caller. Returns END_BOTTOM..END_FRAME_POINTER_END where there is none, -1 otherwise. */
static __always_inline int step(struct walk_state *walk)
{
	struct {
		u64 bp;
		u64 return_address;
	} frame;

	if (walk->bp == 0)
		return END_BOTTOM;
	/* Stacks grow down: a caller's frame lies above. Anything else is no frame pointer. */
	if (walk->bp < walk->sp || (walk->bp & 7))
		return END_FRAME_POINTER_END;
	if (bpf_probe_read_user(&frame, sizeof(frame), (void *)walk->bp))
		return END_READ_FAULT;
	if (frame.return_address == 0)
		return END_BOTTOM;
	walk->ip = frame.return_address;
	walk->sp = walk->bp + sizeof(frame);
	walk->bp = frame.bp;
	return -1;
}

/*
 * Hash of a stack, built up frame by frame: the multiply-and-shift step of MurmurHash64A. 64 bits, so
 * that 65,536 stacks collide with a probability of 1e-10.
 */
static __always_inline u64 hash_frame(u64 hash, u64 ip)
{
	const u64 multiplier = 0xc6a4a7935bd1e995ULL;

	ip *= multiplier;
	ip ^= ip >> 47;
	ip *= multiplier;
	return (hash ^ ip) * multiplier;
}

/*
 * Walk from `walk` into `stack`, whose first frame is `function_ip` and second `walk->ip`: the immediate
 * caller is known whatever follows. Returns the hash of the frames, never 0.
 */
static __always_inline u64 walk_stack(struct stack *stack, u64 function_ip, struct walk_state *walk)
{
	u64 hash = hash_frame(MAX_FRAMES, function_ip);
	u32 depth = 1;
	int end = END_DEPTH;

	stack->frames[0] = function_ip;
	for (; depth < MAX_FRAMES; ) {
		stack->frames[depth] = walk->ip;
		hash = hash_frame(hash, walk->ip);
		depth++;
		end = step(walk);
		if (end >= 0)
			break;
		end = END_DEPTH;
	}
	stack->depth = depth;
	stack->end = end;
	return hash ? hash : 1;
}
