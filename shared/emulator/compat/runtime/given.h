// A launch that somebody describes, of a kernel of this file: what stands behind the file's own text asks for
// the arguments, and launches.
#pragma once
#include <initializer_list>
#include <limits>
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
    // A number is none that its parameter, of this type, holds.
    void (*narrowed)(int argument, const char* type, double value);
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

// Whether a type has a value, an integer one as one with a sign or without: -1 and 0xffffffff are masks of either.
template <class P, class T> bool holds(T value) {
    if constexpr (std::is_same<P, bool>::value) return true;
    else if constexpr (!std::is_arithmetic<P>::value) {
        // A number of 16 bits: likewise.
        double all = double(value), own = double(float(P(float(all))));
        return !(all - all == 0) || own - own == 0;
    }
    else if constexpr (std::is_floating_point<P>::value) {
        // Rounded, but not made infinite.
        double all = double(value);
        return !(all - all == 0) || (all <= double(std::numeric_limits<P>::max()) && all >= -double(std::numeric_limits<P>::max()));
    }
    else if constexpr (std::is_floating_point<T>::value) {
        const double two = 2, all = std::is_signed<P>::value ? -double(std::numeric_limits<P>::min()) : 0;
        const double most = all > 0 ? all : (double(std::numeric_limits<P>::max() / 2) + 1) * two;
        return value >= -all && value < most && value == T(static_cast<P>(value));
    } else if (value < T(0)) {
        return (long long)(value) >= (long long)(std::numeric_limits<typename std::make_signed<P>::type>::min());
    } else {
        return (unsigned long long)(value) <= (unsigned long long)(std::numeric_limits<typename std::make_unsigned<P>::type>::max());
    }
}
template <class P, class T> void given_number(const EmuGiven& given, int argument, const char* type, const T& value) {
    if constexpr (std::is_arithmetic<T>::value && !std::is_same<T, bool>::value)
        if (!holds<P>(value)) given.narrowed(argument, type, double(value));
}
}  // namespace emu
