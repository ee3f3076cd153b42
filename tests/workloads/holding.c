// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * holding - connections and threads that become ever more, by themselves: a thread opens a connection to the
 * program's own socket every 50 ms and a file now and then, and starts a thread every 100 ms. The ledger has
 * the port as a note.
 */
#include "workload.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>

static struct sockaddr_in address = {.sin_family = AF_INET};

static void pause_ms(long ms)
{
	struct timespec time = {ms / 1000, ms % 1000 * 1000000};

	nanosleep(&time, NULL);
}

static void *waiting(void *number)
{
	char name[16];

	snprintf(name, sizeof(name), "waiting-%d", (int)(intptr_t)number);
	prctl(PR_SET_NAME, name);
	for (;;)
		pause();
	return NULL;
}

SITE_FUNCTION int open_connection(void)
{
	int end = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);

	connect(end, (struct sockaddr *)&address, sizeof(address));
	return end;
}

static void *growing(void *unused)
{
	pthread_attr_t small;
	pthread_t thread;

	(void)unused;
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 64 << 10);
	for (int i = 0; i < 900; i++) {
		open_connection();
		if (i % 16 == 0 && open("/etc/passwd", O_RDONLY) < 0)
			WORKLOAD_FATAL("no more descriptors");
		if (i % 2 == 0 && pthread_create(&thread, &small, waiting, (void *)(intptr_t)i))
			WORKLOAD_FATAL("no more threads");
		pause_ms(50);
	}
	return NULL;
}

static void step(long number)
{
	pthread_t thread;

	(void)number;
	pthread_create(&thread, NULL, growing, NULL);
}

int main(void)
{
	int server = socket(AF_INET, SOCK_STREAM, 0);
	socklen_t size = sizeof(address);

	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (bind(server, (struct sockaddr *)&address, size) || listen(server, 4096) ||
	    getsockname(server, (struct sockaddr *)&address, &size))
		WORKLOAD_FATAL("no socket to listen");
	workload_note("port", ntohs(address.sin_port));
	return workload_serve(step);
}
