/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * path.h - a call path, hop by hop: each hop is a way of calling that compilers or libraries have.
 *
 * A hop does something with its frame and calls walk_on(), directly or from a callback, which calls the next
 * hop of the path or, at its end, takes a sample. Where a callback is called more than once, only the first
 * call goes on: walk_on() does nothing when the sample has been taken.
 *
 * One path is walked at a time, whatever thread it leads into.
 */
#ifndef BPFLEAKD_PATH_H
#define BPFLEAKD_PATH_H

#ifdef __cplusplus
extern "C" {
#endif

struct hop {
	const char *name;
	void (*go)(void);
};

/* Ends with an entry without a name. */
extern const struct hop frame_hops[], callback_hops[], signal_hops[], chained_hops[];

void walk_on(void);

/* Walks the path: names with spaces between them. `tables` has the hops. */
void walk(const char *path, const struct hop *const *tables);

#ifdef __cplusplus
}
#endif

/* Something that only a run decides, that the compiler cannot see through, and that keeps a frame. */
extern volatile int path_number;
#define USE(memory) __asm__ volatile("" : : "r"(memory) : "memory")
#define HOP __attribute__((noipa)) static

#endif
