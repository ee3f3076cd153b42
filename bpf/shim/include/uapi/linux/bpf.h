/* bcc carries its own copy of the kernel's bpf.h; helpers.h asks for it under this name. */
#include <linux/types.h>
#include <bcc/bpf.h>
