/* helpers.h counts ring buffers in pages. */
#define PAGE_SIZE 4096
