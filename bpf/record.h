/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The books: blocks in `live`, counters in `sites`, frames in `stacks`.
 *
 * For every site, live = the sum over its blocks in the live table, at every moment outside these
 * functions. Therefore whoever deletes a block's entry, and only who succeeds in that, subtracts it.
 */

static __always_inline void add_to_site(struct site *site, u64 size)
{
	__sync_fetch_and_add(&site->live_bytes, size);
	__sync_fetch_and_add(&site->live_count, 1);
	__sync_fetch_and_add(&site->allocated_bytes, size);
	__sync_fetch_and_add(&site->allocated_count, 1);
}

static __always_inline void subtract_from_site(u32 tgid, const struct live_block *block)
{
	struct site_key key = { .tgid = tgid, .kind = block->kind, .stack_id = block->stack_id };
	struct site *site = sites.lookup(&key);

	if (!site)
		return;
	__sync_fetch_and_add(&site->live_bytes, -block->size);
	__sync_fetch_and_add(&site->live_count, -1);
}

/* Keep the stack of the current thread under its hash, unless it is known. */
static __always_inline void keep_stack(struct process *process, u32 tgid, u64 stack_id, struct stack *stack)
{
	struct stack_key key = { .tgid = tgid, .stack_id = stack_id };

	if (!stacks.lookup(&key) && stacks.update(&key, stack) != 0)
		count_loss(process, LOSS_STACK_FULL);
}

/*
 * The site of `stack`, made if it is new; sets *stack_id to the one that its blocks must carry.
 * No room: the overflow site, which the daemon made at attach.
 */
static __always_inline struct site *site_of(struct process *process, u32 tgid, u32 kind,
					    struct stack *stack, u64 *stack_id)
{
	struct site_key key = { .tgid = tgid, .kind = kind, .stack_id = *stack_id };
	struct site *site = sites.lookup(&key);
	struct site empty = {};

	if (site)
		return site;

	/* The stack first, so that whoever sees the site finds it. Another thread may be as far as we are. */
	keep_stack(process, tgid, *stack_id, stack);
	sites.insert(&key, &empty);
	site = sites.lookup(&key);
	if (site)
		return site;

	count_loss(process, LOSS_SITE_FULL);
	key.stack_id = 0;
	*stack_id = 0;
	return sites.lookup(&key);
}

/* Take the block at `address` out of the live table into *block. Returns whether this call did it. */
static __always_inline bool take_block(void *blocks, u64 address, struct live_block *block)
{
	struct live_block *entry = bpf_map_lookup_elem(blocks, &address);

	if (!entry)
		return false;
	*block = *entry;
	return bpf_map_delete_elem(blocks, &address) == 0;
}

/* Put a new block into the live table. Returns whether there was room. */
static __always_inline bool put_block(struct process *process, u32 tgid, void *blocks, u64 address,
				      struct live_block *block)
{
	struct live_block stale;

	if (bpf_map_update_elem(blocks, &address, block, BPF_NOEXIST) == 0)
		return true;
	/* Either full, or the address is taken by a block whose free was not seen. */
	if (take_block(blocks, address, &stale)) {
		subtract_from_site(tgid, &stale);
		count_loss(process, LOSS_FREE_MISSED);
		if (bpf_map_update_elem(blocks, &address, block, BPF_NOEXIST) == 0)
			return true;
	}
	count_loss(process, LOSS_LIVE_FULL);
	return false;
}

/* The memory of the current thread, made if it is new; NULL: no room. */
static __always_inline struct thread *current_thread(u64 id)
{
	struct thread *thread = threads.lookup(&id);
	int zero = 0;

	if (thread)
		return thread;
	thread = new_thread.lookup(&zero);
	if (!thread)
		return NULL;
	threads.insert(&id, thread);
	return threads.lookup(&id);
}

/* The mapping list of a process; NULL: it has none yet. */
static __always_inline struct unwind_mappings *mappings_of(u32 tgid)
{
	void *map = unwind_mappings.lookup(&tgid);
	u32 zero = 0;

	return map ? bpf_map_lookup_elem(map, &zero) : NULL;
}
