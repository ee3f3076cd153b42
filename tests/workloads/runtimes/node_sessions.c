// SPDX-License-Identifier: GPL-2.0-or-later
/* sessions as a Node.js addon: keep(bytes), turnOver(bytes), serve(step). */
#include <node_api.h>

#include "sessions.h"

static napi_env step_env;
static napi_value step_function;

static long only_number(napi_env env, napi_callback_info info)
{
	napi_value argument;
	size_t count = 1;
	int64_t number = 0;

	if (napi_get_cb_info(env, info, &count, &argument, NULL, NULL) == napi_ok && count == 1)
		napi_get_value_int64(env, argument, &number);
	return number;
}

static napi_value keep(napi_env env, napi_callback_info info)
{
	session_keep(only_number(env, info));
	return NULL;
}

static napi_value turn_over(napi_env env, napi_callback_info info)
{
	session_turn_over(only_number(env, info));
	return NULL;
}

static void step(long number)
{
	napi_value undefined, argument, result;

	napi_get_undefined(step_env, &undefined);
	napi_create_int64(step_env, number, &argument);
	if (napi_call_function(step_env, undefined, step_function, 1, &argument, &result) != napi_ok)
		napi_fatal_error("sessions", NAPI_AUTO_LENGTH, "the step failed", NAPI_AUTO_LENGTH);
}

static napi_value serve(napi_env env, napi_callback_info info)
{
	size_t count = 1;

	step_env = env;
	napi_get_cb_info(env, info, &count, &step_function, NULL, NULL);
	sessions_serve(step);
	return NULL;
}

static void export(napi_env env, napi_value exports, const char *name, napi_callback callback)
{
	napi_value function;

	napi_create_function(env, name, NAPI_AUTO_LENGTH, callback, NULL, &function);
	napi_set_named_property(env, exports, name, function);
}

NAPI_MODULE_INIT()
{
	export(env, exports, "keep", keep);
	export(env, exports, "turnOver", turn_over);
	export(env, exports, "serve", serve);
	return exports;
}
