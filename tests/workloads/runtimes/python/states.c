/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Runs code in another thread state of the thread. The functions are the interpreter's. */

void *PyThreadState_Swap(void *state);
int PyRun_SimpleStringFlags(const char *code, void *flags);

int run_in(void *state, const char *code)
{
	void *own = PyThreadState_Swap(state);
	int failed = PyRun_SimpleStringFlags(code, 0);

	PyThreadState_Swap(own);
	return failed;
}
