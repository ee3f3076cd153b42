/*
 * A program in C with an archive of Go linked into it (-buildmode=c-archive), which calls it as it is told.
 *
 *     KeepGo COUNT BYTES | KeepC COUNT BYTES | Collect | Profile PATH
 */
#include <stdio.h>
#include <string.h>

#include "library-archive.h"

int main(void)
{
	char line[4096], path[4000];
	int count, bytes;

	setlinebuf(stdout);
	puts("ready");
	while (fgets(line, sizeof(line), stdin)) {
		if (sscanf(line, "KeepGo %d %d", &count, &bytes) == 2)
			KeepGo(count, bytes);
		else if (sscanf(line, "KeepC %d %d", &count, &bytes) == 2)
			KeepC(count, bytes);
		else if (sscanf(line, "Profile %3999s", path) == 1)
			Profile(path);
		else if (!strcmp(line, "Collect\n"))
			Collect();
		else
			return 1;
		puts("ok");
	}
	return 0;
}
