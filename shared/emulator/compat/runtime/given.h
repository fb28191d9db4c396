// A launch that somebody describes, of a kernel of this file: what stands behind the file's own text asks for
// the arguments, and launches.
#pragma once
#include <initializer_list>
#include <type_traits>

#include "launch.h"

// What the process that has loaded the file answers.
struct EmuGiven {
    // Memory for an argument, filled; null where it is refused. `type` is f32 and the like, or null; `each` is
    // what each element is a copy of, or null.
    void* (*buffer)(
        int argument, const char* type, size_t element, int rank, const long long* shape, const void* each);
    // The value of an argument that is a number.
    void (*scalar)(int argument, double value);
    // All arguments are there.
    int (*ready)();
};

namespace emu {
template <class T>
T* given_buffer(
    const EmuGiven& given, int argument, std::initializer_list<long long> shape, const T* each = nullptr) {
    return static_cast<T*>(
        given.buffer(argument, scalar_name<T>(), sizeof(T), int(shape.size()), shape.begin(), each));
}
template <class T> void given_scalar(const EmuGiven& given, int argument, const T& value) {
    if constexpr (std::is_arithmetic<T>::value) given.scalar(argument, double(value));
}
}  // namespace emu
