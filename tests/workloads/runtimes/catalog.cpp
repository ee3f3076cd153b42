// SPDX-License-Identifier: GPL-2.0-or-later
/* A library to be opened late, deleted, and named: its functions keep no frame pointer, and one is inlined. */
#include "../workload.h"

namespace catalog {

// There only inlined, and yet the one that allocates: the debug information tells.
__attribute__((always_inline)) inline struct block reserve(struct site *site, size_t size)
{
	struct block block = block_allocated(site, malloc(size), size);

	KEEP(block.address);
	return block;
}

// rbp and all other registers that are to be kept hold something else meanwhile.
SITE_FUNCTION long load(struct site *site, long count)
{
	long a = count, b = a * 3, c = b ^ 5, d = c + a, e = d * b, f = e - c;

	for (long i = 0; i < count; i++) {
		__asm__ volatile("" : "+r"(a), "+r"(b), "+r"(c), "+r"(d), "+r"(e), "+r"(f));
		reserve(site, 601 + (size_t)i);
	}
	return a + b + c + d + e + f;
}

} // namespace catalog

extern "C" void catalog_open(struct site *site, long count)
{
	long sum = catalog::load(site, count);

	KEEP(sum);
}
