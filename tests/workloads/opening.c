// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * opening - opens file descriptors in every way, and closes some of them in every way. Step 1 opens, step 2
 * closes, step 3 opens and closes 10,000 sockets, step 4 gets some in ways that are not recorded. The notes of the
 * ledger are what each function holds open.
 */
#define _GNU_SOURCE
#include "workload.h"

#include <fcntl.h>
#include <linux/io_uring.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/un.h>

#define EACH 23
#define FEW 7
#define SOCKETS 10000

static sigset_t no_signals;
static struct sockaddr_un listening = {.sun_family = AF_UNIX};
static int listener;

/* A function that opens EACH descriptors by an expression, and keeps them. */
#define WAY(name, expression)                                                                            \
	static int name##_kept[EACH];                                                                    \
	SITE_FUNCTION static void name(void)                                                             \
	{                                                                                                \
		for (int i = 0; i < EACH; i++) {                                                         \
			name##_kept[i] = (expression);                                                   \
			if (name##_kept[i] < 0)                                                          \
				WORKLOAD_FATAL("%s failed: %m", #name);                                  \
		}                                                                                        \
	}

/* The same for pairs. */
#define PAIR(name, call)                                                                                 \
	static int name##_kept[EACH][2];                                                                 \
	SITE_FUNCTION static void name(void)                                                             \
	{                                                                                                \
		for (int i = 0; i < EACH; i++) {                                                         \
			int *pair = name##_kept[i];                                                      \
			if (call)                                                                        \
				WORKLOAD_FATAL("%s failed: %m", #name);                                  \
		}                                                                                        \
	}

static int accepted(void)
{
	int end = socket(AF_UNIX, SOCK_STREAM, 0), other;

	if (connect(end, (struct sockaddr *)&listening, sizeof(listening)))
		WORKLOAD_FATAL("connect failed: %m");
	other = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	close(end);
	return other;
}

WAY(by_open, (int)syscall(SYS_open, "/dev/null", O_RDONLY))
WAY(by_openat, open("/dev/null", O_RDONLY))
WAY(by_socket, socket(AF_INET, SOCK_DGRAM, 0))
WAY(by_accept4, accepted())
WAY(by_dup, dup(0))
WAY(by_dup2, dup2(0, 700 + i))
WAY(by_dup3, dup3(0, 800 + i, O_CLOEXEC))
WAY(by_fcntl, fcntl(0, F_DUPFD_CLOEXEC, 0))
WAY(by_eventfd, eventfd(0, 0))
WAY(by_epoll, epoll_create1(0))
WAY(by_timerfd, timerfd_create(CLOCK_MONOTONIC, 0))
WAY(by_signalfd, signalfd(-1, &no_signals, 0))
WAY(by_memfd, memfd_create("opening", 0))
WAY(by_inotify, inotify_init1(0))
WAY(by_pidfd, (int)syscall(SYS_pidfd_open, getpid(), 0))
PAIR(by_pipe, pipe(pair))
PAIR(by_pipe2, pipe2(pair, O_CLOEXEC))
PAIR(by_socketpair, socketpair(AF_UNIX, SOCK_STREAM, 0, pair))

SITE_FUNCTION static void over_others(void)
{
	for (int i = 0; i < FEW; i++)
		if (dup2(0, by_openat_kept[i]) < 0)
			WORKLOAD_FATAL("dup2 failed: %m");
}

static void open_all(void)
{
	void (*ways[])(void) = {by_open, by_openat, by_socket, by_accept4, by_dup, by_dup2, by_dup3, by_fcntl,
				by_eventfd, by_epoll, by_timerfd, by_signalfd, by_memfd, by_inotify, by_pidfd};
	const char *names[] = {"by_open", "by_openat", "by_socket", "by_accept4", "by_dup", "by_dup2", "by_dup3",
			       "by_fcntl", "by_eventfd", "by_epoll", "by_timerfd", "by_signalfd", "by_memfd",
			       "by_inotify", "by_pidfd"};
	void (*pairs[])(void) = {by_pipe, by_pipe2, by_socketpair};
	const char *pair_names[] = {"by_pipe", "by_pipe2", "by_socketpair"};

	for (size_t i = 0; i < sizeof(ways) / sizeof(*ways); i++) {
		ways[i]();
		workload_note(names[i], EACH);
	}
	for (size_t i = 0; i < sizeof(pairs) / sizeof(*pairs); i++) {
		pairs[i]();
		workload_note(pair_names[i], 2 * EACH);
	}
	/* None of these opens a descriptor. */
	if (signalfd(by_signalfd_kept[0], &no_signals, 0) < 0 || dup2(by_dup_kept[0], by_dup_kept[0]) < 0 ||
	    fcntl(by_dup_kept[0], F_GETFL) < 0 || socket(-1, -1, -1) >= 0)
		WORKLOAD_FATAL("a call did what it should not: %m");
}

static void close_some(void)
{
	for (int i = 0; i < FEW; i++)
		close(by_socket_kept[i]);
	workload_note("by_socket", EACH - FEW);
	over_others();
	workload_note("over_others", FEW);
	workload_note("by_openat", EACH - FEW);
	/* These have consecutive numbers. */
	if (syscall(SYS_close_range, by_epoll_kept[0], by_epoll_kept[FEW - 1], 0))
		WORKLOAD_FATAL("close_range failed: %m");
	workload_note("by_epoll", EACH - FEW);
}

SITE_FUNCTION static void come_and_go(void)
{
	for (int i = 0; i < SOCKETS; i++)
		close(socket(AF_INET, SOCK_DGRAM, 0));
	workload_note("come_and_go", 0);
}

/* A ring of io_uring, for one request at a time. */
struct ring {
	int fd;
	struct io_uring_params params;
	char *submitted, *completed;
	struct io_uring_sqe *entries;
};

static int begin_ring(struct ring *ring)
{
	size_t entries_bytes;

	ring->fd = (int)syscall(SYS_io_uring_setup, 4, &ring->params);
	if (ring->fd < 0)
		return -1; /* unavailable in this kernel, or forbidden */
	entries_bytes = ring->params.sq_entries * sizeof(*ring->entries);
	ring->submitted = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, ring->fd, IORING_OFF_SQ_RING);
	ring->completed = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, ring->fd, IORING_OFF_CQ_RING);
	ring->entries = mmap(NULL, entries_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, ring->fd, IORING_OFF_SQES);
	if (ring->submitted == MAP_FAILED || ring->completed == MAP_FAILED || (void *)ring->entries == MAP_FAILED)
		WORKLOAD_FATAL("no memory for a ring: %m");
	return 0;
}

static int by_ring(struct ring *ring, struct io_uring_sqe request)
{
	struct io_sqring_offsets sq = ring->params.sq_off;
	struct io_cqring_offsets cq = ring->params.cq_off;
	unsigned int *tail = (unsigned int *)(ring->submitted + sq.tail);
	unsigned int *head = (unsigned int *)(ring->completed + cq.head);
	unsigned int place = *tail & *(unsigned int *)(ring->submitted + sq.ring_mask);
	struct io_uring_cqe *done;

	ring->entries[place] = request;
	((unsigned int *)(ring->submitted + sq.array))[place] = place;
	__atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
	if (syscall(SYS_io_uring_enter, ring->fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) != 1)
		WORKLOAD_FATAL("io_uring_enter failed: %m");
	done = (struct io_uring_cqe *)(ring->completed + cq.cqes);
	done += *head & *(unsigned int *)(ring->completed + cq.ring_mask);
	__atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
	return done->res;
}

/* Files, sockets and connections that io_uring opens. */
static long get_by_ring(void)
{
	struct ring ring = {0};
	struct io_uring_sqe file = {.opcode = IORING_OP_OPENAT, .fd = AT_FDCWD, .addr = (uintptr_t)"/dev/null"};
	struct io_uring_sqe new_socket = {.opcode = IORING_OP_SOCKET, .fd = AF_UNIX, .off = SOCK_STREAM};
	struct io_uring_sqe accepted = {.opcode = IORING_OP_ACCEPT, .fd = listener};
	long opened = 0;

	if (begin_ring(&ring))
		return 0;
	for (int i = 0; i < EACH; i++) {
		int client = socket(AF_UNIX, SOCK_STREAM, 0);

		if (connect(client, (struct sockaddr *)&listening, sizeof(listening)))
			WORKLOAD_FATAL("no connection: %m");
		opened += by_ring(&ring, file) >= 0;
		opened += by_ring(&ring, new_socket) >= 0; /* Linux 5.19 */
		if (by_ring(&ring, accepted) < 0)
			WORKLOAD_FATAL("nothing accepted");
		opened++;
		close(client);
	}
	return opened;
}

/* 0 if the file system has no handles. */
static long get_by_handle(void)
{
	struct {
		struct file_handle handle;
		char room[MAX_HANDLE_SZ];
	} file = {.handle.handle_bytes = MAX_HANDLE_SZ};
	int mount_id, mount = open("/etc", O_RDONLY | O_DIRECTORY);
	long opened = 0;

	if (name_to_handle_at(AT_FDCWD, "/etc/passwd", &file.handle, &mount_id, 0))
		return 0;
	for (int i = 0; i < EACH; i++)
		opened += open_by_handle_at(mount, &file.handle, O_RDONLY) >= 0;
	return opened;
}

/* Received over a socket, taken by a pidfd (of itself), made by an ioctl, opened by a mount's interface, and as above. */
static void get_unseen(void)
{
	char control[CMSG_SPACE(sizeof(int))], byte = 0;
	int is_locked = 0;
	struct iovec one = {.iov_base = &byte, .iov_len = 1};
	int pair[2], self = (int)syscall(SYS_pidfd_open, getpid(), 0), terminals = open("/dev/ptmx", O_RDWR | O_NOCTTY);

	if (socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) || self < 0 || ioctl(terminals, TIOCSPTLCK, &is_locked))
		WORKLOAD_FATAL("no socket, pidfd or terminal: %m");
	for (int i = 0; i < EACH; i++) {
		struct msghdr message = {.msg_iov = &one, .msg_iovlen = 1, .msg_control = control,
					 .msg_controllen = sizeof(control)};
		struct cmsghdr *head = CMSG_FIRSTHDR(&message);

		head->cmsg_level = SOL_SOCKET;
		head->cmsg_type = SCM_RIGHTS;
		head->cmsg_len = CMSG_LEN(sizeof(int));
		*(int *)CMSG_DATA(head) = 0;
		if (sendmsg(pair[0], &message, 0) != 1 || recvmsg(pair[1], &message, 0) != 1)
			WORKLOAD_FATAL("nothing received: %m");
		if (syscall(SYS_pidfd_getfd, self, 0, 0) < 0)
			WORKLOAD_FATAL("pidfd_getfd failed: %m");
		if (syscall(SYS_fsopen, "tmpfs", 0) < 0)
			WORKLOAD_FATAL("fsopen failed: %m");
		if (ioctl(terminals, TIOCGPTPEER, O_RDWR | O_NOCTTY) < 0)
			WORKLOAD_FATAL("no end of a terminal: %m");
	}
	workload_note("unseen", (double)(4 * EACH + get_by_ring() + get_by_handle()));
}

static void step(long number)
{
	if (number == 1)
		open_all();
	else if (number == 2)
		close_some();
	else if (number == 3)
		come_and_go();
	else
		get_unseen();
}

int main(void)
{
	/* Abstract, so that no file remains. */
	snprintf(listening.sun_path + 1, sizeof(listening.sun_path) - 1, "opening-%d", getpid());
	listener = socket(AF_UNIX, SOCK_STREAM, 0);
	if (bind(listener, (struct sockaddr *)&listening, sizeof(listening)) || listen(listener, 64))
		WORKLOAD_FATAL("no socket to listen: %m");
	return workload_serve(step);
}
