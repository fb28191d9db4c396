// cuda::std is the host's own library, which kernels may use here: it is compiled for the host.
#pragma once
#include <functional>
#include <type_traits>
#include <utility>

#include "../../device.h"

namespace cuda {
namespace std {
using namespace ::std;
// Of C++20.
struct identity {
    template <class T> __forceinline__ constexpr T&& operator()(T&& v) const {
        return static_cast<T&&>(v);
    }
};
}  // namespace std
}  // namespace cuda
