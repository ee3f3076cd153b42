/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Which file's code was at an address. After a plugin is unloaded, the next one may get its addresses: both would then
 * have the same stacks, with the names of whichever is mapped when the stacks are symbolized.
 *
 * So `loaded_code` has a number for each piece of code that is mapped while a process is recorded, with its file. If
 * other code was at these addresses before, each address there gets the number in the words of a stack, and so in the
 * stack's hash. The same file at the same place gets the same number again. A process without such code pays one
 * comparison for each stack.
 *
 * The kernel's BTF gives the layout of the kernel structures (kernel/compilation/kernel_layout.py). Without it, no file
 * is known: address and length then distinguish code.
 */

static long (*read_kernel)(void *to, u32 bytes, const void *from) = (void *)BPF_FUNC_probe_read_kernel;
static long (*read_kernel_text)(void *to, u32 bytes, const void *from) = (void *)BPF_FUNC_probe_read_kernel_str;

/* The number of code for which `loaded_code` has no entry. */
#define CODE_UNKNOWN ((1 << CODE_NUMBER_BITS) - 1)

/* How many ranges of a process are used (a power of 2): before Linux 6.9 the verifier follows each round of a loop. */
#ifdef WALK_BY_TAIL_CALLS
#define USED_KNOWN 64
#define USED_NUMBERED 8
#else
#define USED_KNOWN KNOWN_CODE_RANGES
#define USED_NUMBERED NUMBERED_CODE_RANGES
#endif

#ifdef AT_TASK_STRUCT_FILES
/* The pointer at an address in the kernel; 0 if it cannot be read. */
static __always_inline u64 kernel_pointer(u64 address)
{
	u64 pointer = 0;

	read_kernel(&pointer, sizeof(pointer), (void *)address);
	return pointer;
}

/* The struct file of a descriptor of the current task; 0: not open. */
static __always_inline u64 file_of(u64 descriptor)
{
	u64 files = kernel_pointer((u64)bpf_get_current_task() + AT_TASK_STRUCT_FILES);
	u64 table = kernel_pointer(files + AT_FILES_STRUCT_FDT);
	u32 count = 0;

	read_kernel(&count, sizeof(count), (void *)(table + AT_FDTABLE_MAX_FDS));
	if (descriptor >= count)
		return 0;
	return kernel_pointer(kernel_pointer(table + AT_FDTABLE_FD) + descriptor * sizeof(u64));
}

static __always_inline void identify(struct code_key *key, u64 file)
{
	u64 inode = kernel_pointer(file + AT_FILE_F_INODE);

	key->inode = kernel_pointer(inode + AT_INODE_I_INO);
	read_kernel(&key->device, sizeof(key->device),
		    (void *)(kernel_pointer(inode + AT_INODE_I_SB) + AT_SUPER_BLOCK_S_DEV));
}

/* The most names and mount points on the way from a file up to the root. */
#define CODE_PATH_STEPS 24

/*
 * Reads the names in a file's path, the last one first, up to the root directory of the current process, or of its mount
 * namespace if the file is not below that. The daemon looks the path up below the same directory.
 */
static __always_inline void read_names(struct walk_scratch *scratch, struct loaded_code *code, u64 file)
{
	u64 root = kernel_pointer((u64)bpf_get_current_task() + AT_TASK_STRUCT_FS) + AT_FS_STRUCT_ROOT;
	u64 root_mount = kernel_pointer(root + AT_PATH_MNT), root_entry = kernel_pointer(root + AT_PATH_DENTRY);
	u64 mount = kernel_pointer(file + AT_FILE_F_PATH + AT_PATH_MNT);
	u64 entry = kernel_pointer(file + AT_FILE_F_PATH + AT_PATH_DENTRY), above;
	u32 round = 0, count = 0;

	for (;;) {
		BOUND(round, CODE_PATH_STEPS, out);
		if (entry == root_entry && mount == root_mount)
			break;
		if (entry == kernel_pointer(mount + AT_VFSMOUNT_MNT_ROOT)) {
			above = kernel_pointer(mount - AT_MOUNT_MNT + AT_MOUNT_MNT_PARENT);
			if (!above || above == mount - AT_MOUNT_MNT)
				break;
			entry = kernel_pointer(mount - AT_MOUNT_MNT + AT_MOUNT_MNT_MOUNTPOINT);
			mount = above + AT_MOUNT_MNT;
			continue;
		}
		if (count >= CODE_NAMES)
			break;
		read_kernel_text(code->names[forget(scratch, count) & (CODE_NAMES - 1)].text, CODE_NAME_BYTES,
				 (void *)kernel_pointer(entry + AT_DENTRY_D_NAME + AT_QSTR_NAME));
		count = forget(scratch, count + 1);
		above = kernel_pointer(entry + AT_DENTRY_D_PARENT);
		if (above == entry)
			break;
		entry = above;
	}
out:
	code->name_count = count;
}
#else
static __always_inline u64 file_of(u64 descriptor)
{
	return 0;
}

static __always_inline void identify(struct code_key *key, u64 file)
{
}

static __always_inline void read_names(struct walk_scratch *scratch, struct loaded_code *code, u64 file)
{
}
#endif

/* The entry of a piece of code, created if it is new; NULL: no room. */
static __always_inline struct loaded_code *entry_of_code(struct process *process, struct walk_scratch *scratch,
							 struct code_key *key, u64 file)
{
	struct loaded_code *code = loaded_code.lookup(key);
	int zero = 0;

	if (code)
		return code;
	code = new_code.lookup(&zero);
	if (!code || process->code_count >= MAX_PROCESS_CODE)
		return NULL;
	loaded_code.insert(key, code);
	code = loaded_code.lookup(key);
	if (!code)
		return NULL;
	read_names(scratch, code, file);
	code->number = __sync_fetch_and_add(&process->code_count, 1) + 1;
	return code;
}

/* Assigns [start, end) to a file. Returns whether other code is known to have been there. */
static __always_inline bool take_range(struct walk_scratch *scratch, struct code_ranges *ranges, u64 start, u64 end,
				       u64 identity, bool is_file)
{
	/* In map memory, where the verifier does not follow them. */
	volatile u64 *place = &scratch->walk.managed.words[0], *is_reused = &scratch->walk.managed.words[1];
	struct code_range *range;
	u32 index, round = 0;

	*place = USED_KNOWN;
	*is_reused = 0;
	for (index = 0; index < USED_KNOWN; index = forget(scratch, index + 1)) {
		BOUND(round, USED_KNOWN, out);
		range = &ranges->known[forget(scratch, index) & (USED_KNOWN - 1)];
		if (range->start >= end || range->end <= start)
			continue;
		if (range->identity != identity)
			*is_reused = 1;
		else
			*place = index;
	}
out:
	if (!is_file)
		return *is_reused;
	if (*place == USED_KNOWN)
		*place = __sync_fetch_and_add(&ranges->next_known, 1);
	range = &ranges->known[*place & (USED_KNOWN - 1)];
	range->start = start;
	range->end = end;
	range->identity = identity;
	return *is_reused;
}

/* Code at [start, end) is gone: addresses there have no number until new code is noted. */
static __always_inline void drop_numbered(struct walk_scratch *scratch, struct code_ranges *ranges, u64 start, u64 end)
{
	struct code_range *range;
	u32 index, round = 0;

	for (index = 0; index < USED_NUMBERED; index = forget(scratch, index + 1)) {
		BOUND(round, USED_NUMBERED, out);
		range = &ranges->numbered[forget(scratch, index) & (USED_NUMBERED - 1)];
		if (range->start < end && range->end > start)
			range->end = range->start;
	}
out:
	return;
}

/* Drops the unwind tables of the previous code; the daemon adds those of the new code. */
static __always_inline void forget_tables(struct walk_scratch *scratch, struct unwind_mappings *mappings, u64 start,
					  u64 end)
{
	struct unwind_mapping *mapping;
	u32 index, round = 0;

	mapping = find_mapping(scratch, mappings, start);
	if (mapping)
		mapping->shard = NO_SHARD;
	mapping = find_mapping(scratch, mappings, end - 1);
	if (mapping)
		mapping->shard = NO_SHARD;
	mappings->pending = 1;
	for (index = 0; index < 1 << KNOWN_RULES_BITS; index = forget(scratch, index + 1)) {
		BOUND(round, 1 << KNOWN_RULES_BITS, out);
		mappings->known_rules[forget(scratch, index) & ((1 << KNOWN_RULES_BITS) - 1)] = 0;
	}
out:
	return;
}

/* Notes executable memory that a process has mapped. Memory without a file matters only in place of earlier code. */
static __always_inline void note_mapped_code(struct process *process, struct unwind_mappings *mappings,
				      struct walk_scratch *scratch, struct code_key *key, u64 file,
				      bool is_file)
{
	struct code_ranges *ranges = code_ranges.lookup(&key->tgid);
	struct loaded_code *code;
	struct code_range *range;
	bool is_reused;
	u64 identity;

	if (!ranges)
		return;
	identity = hash_frame(hash_frame(key->device, key->inode), key->start - key->offset);
	is_reused = take_range(scratch, ranges, key->start, key->end, identity, is_file);
	if (!is_file && !is_reused)
		return;
	code = entry_of_code(process, scratch, key, file);
	if (!is_reused) {
		if (code)
			code->was_unnumbered = 1;
	} else {
		drop_numbered(scratch, ranges, key->start, key->end);
		range = &ranges->numbered[__sync_fetch_and_add(&ranges->next_numbered, 1) & (USED_NUMBERED - 1)];
		range->start = key->start;
		range->number = code && code->number < CODE_UNKNOWN ? code->number : CODE_UNKNOWN;
		range->end = key->end;
		if (!process->numbered_end || key->start < process->numbered_start)
			process->numbered_start = key->start;
		if (key->end > process->numbered_end)
			process->numbered_end = key->end;
		if (mappings)
			forget_tables(scratch, mappings, key->start, key->end);
	}
	if (code && !code->is_counted) {
		code->is_counted = 1;
		__sync_fetch_and_add(&process->code_changes, 1);
	}
}

/* Adds the numbers of code to the words of a walked stack, and to its hash. */
static __always_inline void number_frames(struct process *process, struct thread *thread)
{
	volatile struct walk_state *walk = &thread->scratch.walk;
	u32 depth, index, round = 0, range_round, tgid = process->tgid;
	struct code_ranges *ranges = code_ranges.lookup(&tgid);
	struct code_range *range;
	u64 address;

	if (!ranges)
		return;
	for (depth = 0; depth < walk->depth; depth = forget(&thread->scratch, depth + 1)) {
		BOUND(round, MAX_FRAMES, out);
		/* The call may be the last instruction of the code. */
		address = thread->stack.frames[forget(&thread->scratch, depth) & (MAX_FRAMES - 1)] - 1;
		if (address < process->numbered_start || address >= process->numbered_end)
			continue;
		range_round = 0;
		for (index = 0; index < USED_NUMBERED; index = forget(&thread->scratch, index + 1)) {
			BOUND(range_round, USED_NUMBERED, next);
			range = &ranges->numbered[forget(&thread->scratch, index) & (USED_NUMBERED - 1)];
			if (address < range->start || address >= range->end)
				continue;
			thread->stack.frames[forget(&thread->scratch, depth) & (MAX_FRAMES - 1)] |= (u64)range->number << CODE_NUMBER_SHIFT;
			walk->hash = hash_frame(walk->hash, (u64)range->number << CODE_NUMBER_SHIFT | depth);
			break;
		}
next:
		continue;
	}
out:
	return;
}
