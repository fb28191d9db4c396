// How much dynamic shared memory a kernel may have, where cudaFuncSetAttribute has said so, and else. Of what is compiled once: a
// map in each program would take as long to compile as a small kernel.
#pragma once
#include <map>

#include "launch.h"

namespace emu {
// A static initialiser of the program may come before those of this file.
inline std::map<const void*, size_t>& allowed_shared() {
    static std::map<const void*, size_t> all;
    return all;
}
constexpr size_t ALLOWED_SHARED = 48 << 10;
inline bool is_allowed(const void* kernel, size_t shared) {
    auto own = allowed_shared().find(kernel);
    return any_shared || shared <= (own == allowed_shared().end() ? ALLOWED_SHARED : own->second);
}
}  // namespace emu
