// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * forged_jvm - a library that describes itself as HotSpot does, and whose memory is made to be read for long.
 *
 *     gcc -shared -fPIC -DFORGED -o libjvm.so forged_jvm.c     the library
 *     gcc -o forged_jvm forged_jvm.c -ldl                      the program: forged_jvm LIBRARY
 *
 * Of its code cache of 2 GiB a block begins at each segment, and none can be read. Each of its options has its
 * name in a page of its own, as have the types of thousands of structures.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef FORGED

#define ROWS 8000
#define NAMES 3500
#define OPTIONS 8192
#define PAGE 4096ul
#define HEAP_BYTES (2ul << 30)
#define LOG2_SEGMENT 6

struct structure {
	const char *type, *field;
	uint64_t is_static, offset;
	const void *address;
};
struct size {
	const char *type;
	uint64_t size;
};
struct constant {
	const char *name;
	uint64_t value;
};
struct option {
	const char *name;
	void *value;
};

static struct structure structures[ROWS + 1];
static struct size sizes[] = {
	{"HeapBlock", 16}, {"ConstMethod", 56}, {"Method", 88}, {"ConstantPool", 72},
	{"JVMFlag", sizeof(struct option)}, {NULL, 0},
};
static struct constant constants[] = {
	{"frame::interpreter_frame_sender_sp_offset", (uint32_t)-1},
	{"frame::interpreter_frame_last_sp_offset", (uint32_t)-2}, {NULL, 0},
};
struct structure *gHotSpotVMStructs = structures;
struct size *gHotSpotVMTypes = sizes;
struct constant *gHotSpotVMIntConstants = constants;
#define PLACE(name, value) uint64_t gHotSpotVM##name = value
PLACE(StructEntryTypeNameOffset, 0);
PLACE(StructEntryFieldNameOffset, 8);
PLACE(StructEntryIsStaticOffset, 16);
PLACE(StructEntryOffsetOffset, 24);
PLACE(StructEntryAddressOffset, 32);
PLACE(StructEntryArrayStride, sizeof(struct structure));
PLACE(TypeEntryTypeNameOffset, 0);
PLACE(TypeEntrySizeOffset, 8);
PLACE(TypeEntryArrayStride, sizeof(struct size));
PLACE(IntConstantEntryNameOffset, 0);
PLACE(IntConstantEntryValueOffset, 8);
PLACE(IntConstantEntryArrayStride, sizeof(struct constant));

static const char *release = "17.0.0";
static struct option *options;
static uint64_t option_count = OPTIONS, nothing;
/* A CodeHeap: its memory and its map of segments (low and high each), and the size of a segment. */
static struct {
	char *low, *high, *segments, *segments_high;
	uint64_t log2_segment;
} heap;
static void *heaps[] = {&heap};
static struct {
	int32_t length, capacity;
	void **data;
} heap_list = {1, 1, heaps};
static void *heap_list_at = &heap_list;
static struct structure known[] = {
	{"CodeCache", "_heaps", 1, 0, &heap_list_at},
	{"GrowableArray<int>", "_data", 0, 8, NULL},
	{"CodeHeap", "_memory", 0, 0, NULL},
	{"CodeHeap", "_segmap", 0, 16, NULL},
	{"CodeHeap", "_log2_segment_size", 0, 32, NULL},
	{"VirtualSpace", "_low", 0, 0, NULL},
	{"VirtualSpace", "_high", 0, 8, NULL},
	{"HeapBlock::Header", "_used", 0, 8, NULL},
	{"CodeBlob", "_name", 0, 8, NULL},
	{"CodeBlob", "_size", 0, 16, NULL},
	{"CodeBlob", "_frame_size", 0, 20, NULL},
	{"CodeBlob", "_code_begin", 0, 24, NULL},
	{"CodeBlob", "_code_end", 0, 32, NULL},
	{"nmethod", "_method", 0, 40, NULL},
	{"AbstractInterpreter", "_code", 1, 0, &nothing},
	{"StubQueue", "_stub_buffer", 0, 0, NULL},
	{"StubQueue", "_buffer_limit", 0, 8, NULL},
	{"Abstract_VM_Version", "_s_vm_release", 1, 0, &release},
	{"Method", "_constMethod", 0, 8, NULL},
	{"ConstMethod", "_flags", 0, 8, NULL},
	{"ConstMethod", "_constants", 0, 16, NULL},
	{"ConstMethod", "_code_size", 0, 24, NULL},
	{"ConstMethod", "_name_index", 0, 26, NULL},
	{"ConstantPool", "_cache", 0, 24, NULL},
	{"ConstantPool", "_pool_holder", 0, 8, NULL},
	{"ConstantPool", "_length", 0, 16, NULL},
	{"Klass", "_name", 0, 8, NULL},
	{"InstanceKlass", "_constants", 0, 16, NULL},
	{"Symbol", "_length", 0, 0, NULL},
	{"Symbol", "_body", 0, 8, NULL},
	{"JVMFlag", "flags", 1, 0, &options},
	{"JVMFlag", "numFlags", 1, 0, &option_count},
	{"JVMFlag", "_name", 0, 0, NULL},
	{"JVMFlag", "_addr", 0, 8, NULL},
};
#define KNOWN (int)(sizeof(known) / sizeof(*known))

static void *reserve(size_t bytes, int protection)
{
	void *found = mmap(NULL, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (found == MAP_FAILED)
		abort();
	return found;
}

__attribute__((constructor)) static void forge(void)
{
	char *names = reserve(OPTIONS * PAGE, PROT_READ | PROT_WRITE);

	options = reserve(OPTIONS * sizeof(*options), PROT_READ | PROT_WRITE);
	for (int option = 0; option < OPTIONS; option++) {
		snprintf(names + option * PAGE, PAGE, "Option%d", option);
		options[option] = (struct option){names + option * PAGE, &nothing};
	}
	heap.low = reserve(HEAP_BYTES, PROT_NONE);
	heap.high = heap.low + HEAP_BYTES;
	heap.segments = reserve(HEAP_BYTES >> LOG2_SEGMENT, PROT_READ);
	heap.log2_segment = LOG2_SEGMENT;
	for (int row = 0; row < ROWS - KNOWN; row++)
		structures[row] = (struct structure){names + row % NAMES * PAGE, "field", 0, 8, NULL};
	memcpy(structures + ROWS - KNOWN, known, sizeof(known));
}

#else

int main(int argc, char **argv)
{
	if (argc != 2 || !dlopen(argv[1], RTLD_NOW)) {
		fprintf(stderr, "%s\n", argc == 2 ? dlerror() : "forged_jvm LIBRARY");
		return 1;
	}
	for (;;) {
		if (!malloc(101))
			return 1;
		usleep(10000);
	}
}

#endif
