// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * memcached_load PORT SECONDS CONNECTIONS - stores and fetches values in turn, over each connection by a thread.
 *
 * Says how many requests a second were answered, and what 99 of 100 took at most, in milliseconds.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define KEYS 1000
#define VALUE_BYTES 100
#define MAX_CONNECTIONS 64
#define MAX_REQUESTS (1 << 20)

static int port;
static double until_s;
static struct load {
	pthread_t thread;
	float *took_ms;
	long count;
} loads[MAX_CONNECTIONS];

static double now_s(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static void ask(int fd, const char *request, size_t size, const char *end)
{
	char answer[4096];
	size_t have = 0, end_size = strlen(end);

	if (write(fd, request, size) != (ssize_t)size)
		fail("write");
	do {
		ssize_t got = read(fd, answer + have, sizeof(answer) - have);

		if (got <= 0)
			fail("read");
		have += (size_t)got;
	} while (have < end_size || memcmp(answer + have - end_size, end, end_size));
}

static void *run(void *argument)
{
	struct load *load = argument;
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((unsigned short)port)};
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	unsigned seed = (unsigned)(load - loads);
	char request[512], value[VALUE_BYTES + 1] = {0};

	memset(value, 'v', VALUE_BYTES);
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)))
		fail("connect");
	for (double began_s = now_s(); began_s < until_s && load->count < MAX_REQUESTS; load->count++) {
		int key = rand_r(&seed) % KEYS, size;
		double ended_s;

		if (load->count % 2)
			size = snprintf(request, sizeof(request), "get key-%d\r\n", key);
		else
			size = snprintf(request, sizeof(request), "set key-%d 0 0 %d\r\n%s\r\n", key, VALUE_BYTES, value);
		ask(fd, request, (size_t)size, load->count % 2 ? "END\r\n" : "STORED\r\n");
		ended_s = now_s();
		load->took_ms[load->count] = (float)((ended_s - began_s) * 1e3);
		began_s = ended_s;
	}
	close(fd);
	return NULL;
}

static int compare(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;

	return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
	int connections;
	long all = 0;
	float *took_ms;
	double began_s = now_s();

	if (argc != 4 || (connections = atoi(argv[3])) < 1 || connections > MAX_CONNECTIONS)
		return 2;
	port = atoi(argv[1]);
	until_s = began_s + atof(argv[2]);
	for (int i = 0; i < connections; i++) {
		loads[i].took_ms = malloc(MAX_REQUESTS * sizeof(float));
		if (!loads[i].took_ms || pthread_create(&loads[i].thread, NULL, run, &loads[i]))
			fail("pthread_create");
	}
	for (int i = 0; i < connections; i++)
		pthread_join(loads[i].thread, NULL);
	began_s = now_s() - began_s;
	for (int i = 0; i < connections; i++)
		all += loads[i].count;
	took_ms = malloc((size_t)(all + 1) * sizeof(float));
	if (!took_ms || !all)
		fail("nothing was answered");
	for (int i = 0, at = 0; i < connections; at += (int)loads[i].count, i++)
		memcpy(took_ms + at, loads[i].took_ms, (size_t)loads[i].count * sizeof(float));
	qsort(took_ms, (size_t)all, sizeof(float), compare);
	printf("%.1f %.4f\n", (double)all / began_s, (double)took_ms[all * 99 / 100]);
	return 0;
}
