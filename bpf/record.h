/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The books: blocks in `live`, counters in `sites`, frames in `stacks`.
 *
 * For every site, the live counters equal the sum of what its blocks in the live table stand for (sampling.h), at
 * every moment outside these functions; likewise for the process. Therefore only the code path that successfully
 * deletes a block's entry may subtract the block.
 */

/*
 * Whether a daemon reads the records at `now_ns`. After too long without one, recording stops, so that the probes
 * cost little. A daemon that returns starts over, because frees are missed from here on. Callers use this only where
 * they read the clock anyway.
 */
static __always_inline bool is_attended(struct process *process, u64 now_ns)
{
	u32 zero = 0;
	struct heartbeat *last = heartbeat.lookup(&zero);

	/* The heartbeat may be slightly later than now. */
	if (!last || !last->timeout_ns || (s64)(now_ns - last->beat_ns) <= (s64)last->timeout_ns)
		return true;
	process->state = STATE_UNATTENDED;
	count_loss(process, LOSS_UNATTENDED);
	return false;
}

/* How often a thread tries to raise a peak that other threads are raising too. */
#define PEAK_ROUNDS 4

static __always_inline void raise_peak(s64 *peak, s64 live)
{
	s64 known = *peak;
	s64 found;
	int round;

#pragma unroll
	for (round = 0; round < PEAK_ROUNDS; round++) {
		if (live <= known)
			return;
		found = __sync_val_compare_and_swap(peak, known, live);
		if (found == known)
			return;
		known = found;
	}
}

/*
 * Reports to the daemon that a site's counters have changed; called after the change. A reading first increments
 * `reading`, then takes the list, then reads the listed sites. A program that still sees the old number changed the
 * site before that, so the site is listed under the old number, or is about to be. A site listed under the new number
 * may change again under the same number; the next reading reads it again. List the site before setting `listed`:
 * another thread must not rely on an entry that does not exist yet.
 */
static __always_inline void note_change(struct process *process, struct site *site, u32 kind, u64 stack_id)
{
	struct changed_site change = { .kind = kind, .stack_id = stack_id, .reading = process->reading };

	if (site->listed == change.reading)
		return;
	change.tgid = process->tgid;
	if (changed_sites.ringbuf_output(&change, sizeof(change), BPF_RB_NO_WAKEUP))
		process->change_unlisted = 1;
	site->listed = change.reading;
}

static __always_inline void add_to_site(struct process *process, struct site *site,
					const struct live_block *block)
{
	u64 bytes = estimated_bytes(block->size, block->weight);
	u64 count = estimated_count(block->size, block->weight);

	__sync_fetch_and_add(&process->recorded, 1);
	raise_peak(&process->peak_live_bytes, __sync_fetch_and_add(&process->live_bytes, bytes) + bytes);
	raise_peak(&site->peak_live_bytes, __sync_fetch_and_add(&site->live_bytes, bytes) + bytes);
	__sync_fetch_and_add(&site->live_count, count);
	__sync_fetch_and_add(&site->allocated_bytes, bytes);
	__sync_fetch_and_add(&site->allocated_count, count);
	if (count != COUNT_UNIT) {
		__sync_fetch_and_add(&site->live_bytes_variance, bytes_variance(block->size, block->weight));
		__sync_fetch_and_add(&site->live_count_variance, count_variance(count));
	}
	note_change(process, site, block->kind, block->stack_id);
}

static __always_inline void subtract_from_site(struct process *process, u32 tgid,
					       const struct live_block *block, bool temporary)
{
	struct site_key key = { .tgid = tgid, .kind = block->kind, .stack_id = block->stack_id };
	struct site *site = sites.lookup(&key);
	u64 bytes = estimated_bytes(block->size, block->weight);
	u64 count = estimated_count(block->size, block->weight);

	__sync_fetch_and_add(&process->released, 1);
	__sync_fetch_and_add(&process->live_bytes, -bytes);
	if (!site)
		return;
	__sync_fetch_and_add(&site->live_bytes, -bytes);
	__sync_fetch_and_add(&site->live_count, -count);
	if (temporary)
		__sync_fetch_and_add(&site->temporary_count, count);
	if (count != COUNT_UNIT) {
		__sync_fetch_and_add(&site->live_bytes_variance, -bytes_variance(block->size, block->weight));
		__sync_fetch_and_add(&site->live_count_variance, -count_variance(count));
	}
	note_change(process, site, block->kind, block->stack_id);
}

/*
 * The block that a thread allocated last, in one word: its address, and the bits of the tid that the word's index in
 * the process does not have. Two threads can share an index. If the word belongs to the other thread, look in the
 * thread's own entry; only then, since this look-up costs 40 ns.
 */
#define USER_ADDRESS_BITS 47

static __always_inline u64 last_allocation(u64 id, u64 address)
{
	return address | (u64)((u32)id / LAST_ALLOCATIONS) << USER_ADDRESS_BITS;
}

static __always_inline void note_last_allocation(struct process *process, struct thread *thread, u64 id,
						 u64 address)
{
	if (thread)
		thread->last_address = address;
	process->last_allocations[id % LAST_ALLOCATIONS] = last_allocation(id, address);
}

/*
 * Whether a freed block was temporary: the last block that this thread allocated. heaptrack differs: it uses the
 * order of all threads' calls, and a free of another block ends the state too.
 */
static __always_inline bool is_temporary(struct process *process, u64 id, const struct live_block *block,
					 u64 address)
{
	u64 last = process->last_allocations[id % LAST_ALLOCATIONS];
	struct thread *thread;

	if (block->tid != (u32)id)
		return false;
	if ((last ^ last_allocation(id, 0)) >> USER_ADDRESS_BITS == 0)
		return last == last_allocation(id, address);
	thread = threads.lookup(&id);
	return thread && thread->last_address == address;
}

/* Stores the stack of the current thread under its hash, unless it is stored already. */
static __always_inline void keep_stack(struct process *process, u32 tgid, u64 stack_id, struct stack *stack)
{
	struct stack_key key = { .tgid = tgid, .stack_id = stack_id };

	if (stacks.lookup(&key))
		return;
	if (process->stack_count - process->stacks_removed < MAX_PROCESS_SITES && stacks.update(&key, stack) == 0)
		__sync_fetch_and_add(&process->stack_count, 1);
	else
		count_loss(process, LOSS_STACK_FULL);
}

/*
 * Whether the daemon may be removing a site: one without blocks that has not changed for long. Whatever is added to
 * such a site would be lost. The daemon sets `removed_before` and waits for an RCU grace period before it removes
 * sites, and for another one before it resets it. The entry may be removed while this runs and its memory reused for
 * another site; then the key leads to another entry.
 */
static __always_inline bool is_being_removed(const struct process *process, struct site_key *key,
					     const struct site *site)
{
	if (!process->removed_before || key->kind != KIND_HEAP)
		return false;
	return (!site->live_count && site->listed < process->removed_before) || sites.lookup(key) != site;
}

/*
 * The site of `stack`, created if it is new; sets *stack_id to the stack ID for its blocks. If there is no room, or
 * the site is being removed, returns the overflow site, which the daemon created at attach.
 */
static __always_inline struct site *site_of(struct process *process, u32 tgid, u32 kind,
					    struct stack *stack, u64 *stack_id)
{
	struct site_key key = { .tgid = tgid, .kind = kind, .stack_id = *stack_id };
	struct site *site = sites.lookup(&key);
	struct site empty = {};

	if (site && !is_being_removed(process, &key, site))
		return site;

	if (!site && process->site_count - process->sites_removed < MAX_PROCESS_SITES) {
		/*
		 * The stack comes first, so that every reader of the site finds it. Another thread may do the same at
		 * this moment.
		 */
		keep_stack(process, tgid, *stack_id, stack);
		if (sites.insert(&key, &empty) == 0)
			__sync_fetch_and_add(&process->site_count, 1);
		site = sites.lookup(&key);
		if (site)
			return site;
	}

	if (!site)
		count_loss(process, LOSS_SITE_FULL);
	key.stack_id = 0;
	*stack_id = 0;
	return sites.lookup(&key);
}

/*
 * Removes the block at `address` from the live table and copies it to *block. Returns whether this call removed it.
 */
static __always_inline bool take_block(void *blocks, u64 address, struct live_block *block)
{
	struct live_block *entry = bpf_map_lookup_elem(blocks, &address);

	if (!entry)
		return false;
	*block = *entry;
	return bpf_map_delete_elem(blocks, &address) == 0;
}

/* Inserts a new block into the live table. Returns whether there was room. */
static __always_inline bool put_block(struct process *process, u32 tgid, void *blocks, u64 address,
				      struct live_block *block)
{
	struct live_block stale;

	if (bpf_map_update_elem(blocks, &address, block, BPF_NOEXIST) == 0)
		return true;
	/* The table is full, or the address belongs to a block whose free was missed. */
	if (take_block(blocks, address, &stale)) {
		subtract_from_site(process, tgid, &stale, false);
		count_loss(process, LOSS_FREE_MISSED);
		if (bpf_map_update_elem(blocks, &address, block, BPF_NOEXIST) == 0)
			return true;
	}
	count_loss(process, LOSS_LIVE_FULL);
	return false;
}

/* The most threads of one process that have an entry: others find room, too. */
#define MAX_PROCESS_THREADS ((MAX_THREADS + 1) / 2)

/* The entry of the current thread, created if it is new; NULL: no room, for all or for its process. */
static __always_inline struct thread *current_thread(struct process *process, u64 id)
{
	struct thread *thread = threads.lookup(&id);
	int zero = 0;

	if (thread)
		return thread;
	thread = new_thread.lookup(&zero);
	/* Signed: entries from before a new attach are not in the count, but their ends are. */
	if (!thread || (s64)(process->thread_count - process->threads_removed) >= MAX_PROCESS_THREADS)
		return NULL;
	if (threads.insert(&id, thread) == 0)
		__sync_fetch_and_add(&process->thread_count, 1);
	return threads.lookup(&id);
}

/* The mapping list of the process in a slot; NULL: it has none yet. */
static __always_inline struct unwind_mappings *mappings_of(u32 slot)
{
	void *map = unwind_mappings.lookup(&slot);
	u32 zero = 0;

	return map ? bpf_map_lookup_elem(map, &zero) : NULL;
}
