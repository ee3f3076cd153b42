/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * sessions.h - the C library that programs of all runtimes leak through.
 *
 * It has the ledger and the protocol of workload.h, so that every runtime is measured by the same truth, and
 * is called by managed code as well as calling it: serve() is a frame between main and the steps.
 */
#ifndef BPFLEAKD_SESSIONS_H
#define BPFLEAKD_SESSIONS_H

/* Keeps a block of that many bytes for ever. Before serve() both do nothing, to warm up a runtime with. */
void session_keep(long size_bytes);

/* Allocates a block and frees it. */
void session_turn_over(long size_bytes);

/* Says "ready" and calls `step` for every "run" until "exit". */
int sessions_serve(void (*step)(long number));

/* Calls `function`: one more turn from managed code to C and back. */
void sessions_call(void (*function)(long number), long number);

#endif
