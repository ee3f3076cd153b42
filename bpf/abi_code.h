/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The interface to the daemon: code that came after the attach. */
#ifndef BPFLEAKD_ABI_CODE_H
#define BPFLEAKD_ABI_CODE_H

/*
 * Code that a process has mapped while it was recorded: code.h. If other code was at its addresses before, the words of
 * its frames have its number in `loaded_code` above the address.
 */
#define CODE_NUMBER_SHIFT 47
#define CODE_NUMBER_BITS 14
#define MAX_PROCESS_CODE 4096
#define MAX_LOADED_CODE 16384
#define KNOWN_CODE_RANGES 512		/* a power of 2 */
#define NUMBERED_CODE_RANGES 16	/* a power of 2 */
#define CODE_NAMES 16		/* a power of 2 */
#define CODE_NAME_BYTES 64

/* A file that is executable at [start, end), from `offset` on. Anonymous memory has device and inode 0. */
struct code_key {
	__u32 tgid;
	__u32 device;
	__u64 inode;
	__u64 start;
	__u64 end;
	__u64 offset;
};

struct code_name {
	char text[CODE_NAME_BYTES];
};

/*
 * The names in the path of its file below the root of its process, the last one first. `number` 0: the entry is being
 * written. `was_unnumbered`: it was the first code at its addresses, so words without a number belong to it.
 */
struct loaded_code {
	__u32 number;
	__u32 was_unnumbered;
	__u32 name_count;
	__u32 is_counted;	/* in process.code_changes */
	struct code_name names[CODE_NAMES];
};

struct code_range {
	__u64 start;
	__u64 end;
	/* A hash of the file and of the address at which it would begin. */
	__u64 identity;
	__u32 number;
	__u32 reserved;
};

/* Where code was lately, also before the attach; and where code with a number is now. */
struct code_ranges {
	__u64 next_known;
	__u64 next_numbered;
	struct code_range known[KNOWN_CODE_RANGES];
	struct code_range numbered[NUMBERED_CODE_RANGES];
};

#endif
