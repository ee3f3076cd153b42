// SPDX-License-Identifier: GPL-2.0-or-later
/* Called back by the C library: its frames lie between two of the program's. */
#include <dirent.h>
#include <ftw.h>
#include <link.h>
#include <printf.h>
#include <pthread.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <threads.h>
#include <ucontext.h>

#include "path.h"

enum { NUMBERS = 61 };

static const char *const somewhere = "/proc/self/task";

static int compare(const void *left, const void *right)
{
	walk_on();
	return *(const int *)left - *(const int *)right;
}

static int compare_with(const void *left, const void *right, void *data)
{
	USE(data);
	return compare(left, right);
}

static void fill(int *numbers)
{
	for (int i = 0; i < NUMBERS; i++)
		numbers[i] = (i * 37 + path_number) % NUMBERS;
}

HOP void with_qsort(void)
{
	int numbers[NUMBERS];

	fill(numbers);
	qsort(numbers, NUMBERS, sizeof(*numbers), compare);
	USE(numbers);
}

HOP void with_qsort_r(void)
{
	int numbers[NUMBERS];

	fill(numbers);
	qsort_r(numbers, NUMBERS, sizeof(*numbers), compare_with, numbers);
	USE(numbers);
}

HOP void with_bsearch(void)
{
	int numbers[NUMBERS], key = 17;

	fill(numbers);
	USE(bsearch(&key, numbers, NUMBERS, sizeof(*numbers), compare));
	USE(numbers);
}

HOP void with_lfind(void)
{
	int numbers[NUMBERS], key = 17;
	size_t count = NUMBERS;

	fill(numbers);
	USE(lfind(&key, numbers, &count, sizeof(*numbers), compare));
	USE(numbers);
}

static void visit(const void *node, VISIT order, int depth)
{
	(void)node;
	(void)order;
	if (depth == 1)
		walk_on();
	USE(node);
}

static int compare_quietly(const void *left, const void *right)
{
	return *(const int *)left - *(const int *)right;
}

static void drop(void *node)
{
	USE(node);
}

static void *tree(int *numbers)
{
	void *root = NULL;

	fill(numbers);
	for (int i = 0; i < NUMBERS; i++)
		tsearch(&numbers[i], &root, compare_quietly);
	return root;
}

HOP void with_tsearch(void)
{
	int numbers[NUMBERS];
	void *root = tree(numbers);

	USE(tsearch(&numbers[2], &root, compare));
	tdestroy(root, drop);
}

HOP void with_twalk(void)
{
	int numbers[NUMBERS];
	void *root = tree(numbers);

	twalk(root, visit);
	tdestroy(root, drop);
}

static void drop_and_walk_on(void *node)
{
	walk_on();
	USE(node);
}

HOP void with_tdestroy(void)
{
	int numbers[NUMBERS];

	tdestroy(tree(numbers), drop_and_walk_on);
	USE(numbers);
}

static void once(void)
{
	walk_on();
	USE(&path_number);
}

HOP void with_pthread_once(void)
{
	pthread_once_t control = PTHREAD_ONCE_INIT;

	pthread_once(&control, once);
	USE(&control);
}

HOP void with_call_once(void)
{
	once_flag flag = ONCE_FLAG_INIT;

	call_once(&flag, once);
	USE(&flag);
}

static int on_object(struct dl_phdr_info *info, size_t size, void *data)
{
	(void)size;
	USE(info);
	USE(data);
	walk_on();
	return 1;
}

/* The loader holds a lock meanwhile: the same call from another thread would wait forever. */
HOP void with_dl_iterate_phdr(void)
{
	dl_iterate_phdr(on_object, NULL);
	USE(&path_number);
}

static ssize_t cookie_write(void *cookie, const char *text, size_t size)
{
	USE(cookie);
	USE(text);
	walk_on();
	return (ssize_t)size;
}

HOP void with_stdio(void)
{
	FILE *file = fopencookie(NULL, "w", (cookie_io_functions_t){.write = cookie_write});

	if (!file)
		abort();
	fprintf(file, "%d and %s\n", path_number, "a text");
	fflush(file);
	fclose(file);
}

static int print_walk(FILE *file, const struct printf_info *info, const void *const *arguments)
{
	USE(info);
	USE(arguments);
	walk_on();
	return fputc('w', file) == EOF ? -1 : 1;
}

static int print_nothing(const struct printf_info *info, size_t count, int *types, int *sizes)
{
	USE(info);
	USE(types);
	USE(sizes);
	(void)count;
	return 0;
}

/* The program's own conversion, in a text long enough for printf to use a buffer beside the file. */
HOP void with_printf(void)
{
	static volatile char conversion[] = "%d %W %s";
	char text[100];

	register_printf_specifier('W', print_walk, print_nothing);
	snprintf(text, sizeof(text), (const char *)conversion, path_number, "end");
	USE(text);
}

static int on_file(const char *path, const struct stat *status, int type, struct FTW *where)
{
	(void)type;
	USE(path);
	USE(status);
	USE(where);
	walk_on();
	return 1;
}

HOP void with_nftw(void)
{
	nftw(somewhere, on_file, 4, FTW_PHYS);
	USE(&path_number);
}

static int select_entry(const struct dirent *entry)
{
	USE(entry);
	walk_on();
	return 0;
}

HOP void with_scandir(void)
{
	struct dirent **entries;

	USE((void *)(long)scandir(somewhere, &entries, select_entry, alphasort));
	USE(&entries);
}

static void *in_thread(void *argument)
{
	walk_on();
	return argument;
}

HOP void in_a_thread(void)
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, in_thread, NULL) || pthread_join(thread, NULL))
		abort();
	USE(&thread);
}

static void clean_up(void *argument)
{
	walk_on();
	USE(argument);
}

static void *cancelled_thread(void *argument)
{
	pthread_cleanup_push(clean_up, argument);
	pthread_exit(argument);
	pthread_cleanup_pop(0);
	return argument;
}

/* pthread_exit unwinds the stack, like an exception, and calls the handler from the middle of it. */
HOP void in_a_thread_that_exits(void)
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, cancelled_thread, NULL) || pthread_join(thread, NULL))
		abort();
	USE(&thread);
}

static void *thread_with_value(void *key)
{
	if (pthread_setspecific(*(pthread_key_t *)key, key))
		abort();
	return key;
}

HOP void in_a_thread_value(void)
{
	pthread_key_t key;
	pthread_t thread;

	if (pthread_key_create(&key, clean_up) ||
	    pthread_create(&thread, NULL, thread_with_value, &key) || pthread_join(thread, NULL) ||
	    pthread_key_delete(key))
		abort();
	USE(&thread);
}

static void in_context(void)
{
	walk_on();
	USE(&path_number);
}

/* A separate stack, whose bottom the C library marks. */
HOP void in_a_context(void)
{
	size_t size = 1 << 18;
	char *memory = malloc(size);
	ucontext_t here, there;

	if (!memory || getcontext(&there))
		abort();
	there.uc_stack.ss_sp = memory;
	there.uc_stack.ss_size = size;
	there.uc_link = &here;
	makecontext(&there, in_context, 0);
	if (swapcontext(&here, &there))
		abort();
	free(memory);
}

const struct hop callback_hops[] = {
	{"qsort", with_qsort},
	{"qsort_r", with_qsort_r},
	{"bsearch", with_bsearch},
	{"lfind", with_lfind},
	{"tsearch", with_tsearch},
	{"twalk", with_twalk},
	{"tdestroy", with_tdestroy},
	{"pthread_once", with_pthread_once},
	{"call_once", with_call_once},
	{"stdio", with_stdio},
	{"printf", with_printf},
	{"nftw", with_nftw},
	{"scandir", with_scandir},
	{"thread", in_a_thread},
	{"thread-exit", in_a_thread_that_exits},
	{"thread-value", in_a_thread_value},
	{"context", in_a_context},
	{"dl_iterate_phdr", with_dl_iterate_phdr},
	{0},
};
