// SPDX-License-Identifier: GPL-2.0-or-later
/* The native method of JavaStacks: a block that nobody frees. */
#include <jni.h>
#include <stdlib.h>

void *volatile java_stacks_kept;

JNIEXPORT void JNICALL Java_JavaStacks_keep(JNIEnv *env, jclass class, jlong bytes)
{
	(void)env;
	(void)class;
	java_stacks_kept = malloc(bytes);
	__asm__ volatile("" : : : "memory");
}
