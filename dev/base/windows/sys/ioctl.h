// Windows: everything is in posix.h.
