// assert ends a kernel's launch with a finding that has its text and its thread; the C library's
// would end the process. May be included again, with another NDEBUG, as the C library's may.
#include "../include/emulator.h"

#undef assert
#ifdef NDEBUG
#define assert(...) ((void)0)
#else
#define assert(...) \
    ((__VA_ARGS__) ? (void)0 : ::emu_trap("assertion failed: " #__VA_ARGS__))
#endif
