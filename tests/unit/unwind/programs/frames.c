/* A deep stack through every kind of frame that a C compiler makes, asleep at its innermost end.
 *
 * main -> realigned stack -> alloca -> variable array -> qsort -> comparison -> recursion -> signal
 * handler on its own stack -> a few more -> pause. A second thread sleeps in a short stack of its own.
 * When both are there, "ready" is printed. With the argument "return" nothing sleeps and main returns.
 */
#define _GNU_SOURCE
#include <alloca.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEPTH 23
#define NOINLINE __attribute__((noinline, noclone, noipa))

static volatile int sink;
static volatile int sleeps = 1;
static volatile sig_atomic_t thread_is_there;

NOINLINE int innermost(int value)
{
    if (!sleeps)
        return value;
    while (!thread_is_there)
        usleep(1000);
    puts("ready");
    fflush(stdout);
    for (;;)
        pause();
}

/* Arguments on the stack and a realigned frame make GCC keep the caller's stack pointer in memory. */
NOINLINE int realigned_with_stack_arguments(int a, int b, int c, int d, int e, int f, int g, int h)
{
    char aligned[128] __attribute__((aligned(64)));
    char *more = alloca((size_t)a + 16);

    memset(aligned, b, sizeof(aligned));
    memset(more, c, (size_t)a + 16);
    sink = innermost(aligned[d] + more[e] + f + g + h) + aligned[1];
    return sink + more[3];
}

static void handler(int signal_number)
{
    sink = realigned_with_stack_arguments(40, 2, 3, 4, 5, 6, 7, signal_number) + 1;
}

NOINLINE int recurse(int depth)
{
    if (depth == 0) {
        raise(SIGUSR1);
        return sink;
    }
    return recurse(depth - 1) + sink;
}

NOINLINE static int compare(const void *left, const void *right)
{
    static int once;

    if (!once++)
        sink = recurse(DEPTH) + 1;
    return *(const int *)left - *(const int *)right;
}

NOINLINE int with_variable_array(int count)
{
    int numbers[count];

    for (int i = 0; i < count; i++)
        numbers[i] = count - i;
    qsort(numbers, (size_t)count, sizeof(numbers[0]), compare);
    return numbers[count / 2] + sink;
}

NOINLINE int with_alloca(int size)
{
    char *memory = alloca((size_t)size);

    memset(memory, 1, (size_t)size);
    sink = with_variable_array(size / 10) + memory[size / 2];
    return sink;
}

__attribute__((force_align_arg_pointer)) NOINLINE int realigned(int size)
{
    double numbers[8] __attribute__((aligned(32)));

    for (int i = 0; i < 8; i++)
        numbers[i] = size + i;
    sink = with_alloca(size) + (int)numbers[size & 7];
    return sink;
}

static void *thread(void *unused)
{
    thread_is_there = 1;
    while (sleeps)
        pause();
    return unused;
}

int main(int argc, char **argv)
{
    static char signal_stack[1 << 16];
    stack_t stack = {.ss_sp = signal_stack, .ss_size = sizeof(signal_stack)};
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
    pthread_t id;

    if (argc > 1 && !strcmp(argv[1], "return"))
        sleeps = 0;
    sigaltstack(&stack, NULL);
    sigaction(SIGUSR1, &action, NULL);
    if (sleeps)
        pthread_create(&id, NULL, thread, NULL);
    return realigned(100) == 12345;
}
