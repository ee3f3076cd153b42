// SPDX-License-Identifier: GPL-2.0-or-later
/* The native method of JavaWalk. */
#include <jni.h>
#include <stdlib.h>

JNIEXPORT void JNICALL Java_JavaWalk_pairs(JNIEnv *env, jclass class, jint count)
{
	(void)env;
	(void)class;
	while (count-- > 0)
		free(malloc(1000));
}
