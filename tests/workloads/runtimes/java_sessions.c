// SPDX-License-Identifier: GPL-2.0-or-later
/* sessions for Java: the native methods of Shop. */
#include <jni.h>

#include "sessions.h"

static JNIEnv *step_env;
static jclass step_class;
static jmethodID step_method;

JNIEXPORT void JNICALL Java_Shop_keep(JNIEnv *env, jclass class, jlong bytes)
{
	(void)env;
	(void)class;
	session_keep(bytes);
	__asm__ volatile("" : : : "memory");
}

JNIEXPORT void JNICALL Java_Shop_turnOver(JNIEnv *env, jclass class, jlong bytes)
{
	(void)env;
	(void)class;
	session_turn_over(bytes);
	__asm__ volatile("" : : : "memory");
}

static void step(long number)
{
	(*step_env)->CallStaticVoidMethod(step_env, step_class, step_method, (jlong)number);
	if ((*step_env)->ExceptionCheck(step_env))
		(*step_env)->FatalError(step_env, "the step failed");
}

JNIEXPORT jint JNICALL Java_Shop_serve(JNIEnv *env, jclass class)
{
	step_env = env;
	step_class = class;
	step_method = (*env)->GetStaticMethodID(env, class, "step", "(J)V");
	return sessions_serve(step);
}
