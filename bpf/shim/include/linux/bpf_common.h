/* helpers.h includes this; nothing of it is used. */
