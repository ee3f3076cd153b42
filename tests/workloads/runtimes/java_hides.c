// SPDX-License-Identifier: GPL-2.0-or-later
/* An agent that makes a JVM one whose structures are not known: a field of its table for debuggers gets another name. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <jni.h>
#include <stdint.h>
#include <string.h>

/* VMStructEntry of src/hotspot/share/runtime/vmStructs.hpp. */
struct entry {
	const char *type, *field, *type_of_field;
	int32_t is_static;
	uint64_t offset;
	void *address;
};

JNIEXPORT jint JNICALL Agent_OnLoad(JavaVM *vm, char *options, void *reserved)
{
	struct entry **table = dlsym(RTLD_DEFAULT, "gHotSpotVMStructs");

	(void)vm;
	(void)options;
	(void)reserved;
	if (!table)
		return 1;
	for (struct entry *one = *table; one->type; one++)
		if (!strcmp(one->type, "CodeBlob") && !strcmp(one->field, "_frame_size"))
			one->field = "_hidden";
	return 0;
}
