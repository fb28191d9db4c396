// wmma of PTX: tiles over the lanes of a warp as mma.sync has them, which is as good as any other way.
#pragma once

namespace emu {
namespace ptx {
__forceinline__ void check_tile(const char* place, uint32_t row_bytes) {
    emu_tile_address(place, 32);
    if (row_bytes % 16 != 0) emu_misaligned("the distance of a wmma tile's rows", 16);
}
// Register n of A has row g + 8 (n % 2) and k from t + 4 (n / 2) on, counted in registers; of B column g + 8 (n / 2) and k from
// t + 4 (n % 2) on. Registers behind the fourth repeat them.
template <class T, int N, bool OF_A, bool K_LIES_ALONG>
__forceinline__ Parts<uint32_t, N> tile_operand(const char* place, uint32_t stride) {
    check_tile(place, stride * sizeof(T));
    constexpr unsigned EACH = 4 / sizeof(T);
    const T* from = reinterpret_cast<const T*>(place);
    unsigned lane = laneid();
    Parts<uint32_t, N> all;
    for (int n = 0; n < 4; ++n) {
        unsigned outer = lane / 4 + 8 * (OF_A ? n % 2 : n / 2);
        unsigned k = (lane % 4 + 4 * (OF_A ? n / 2 : n % 2)) * EACH;
        uint32_t word = 0;
        for (unsigned e = 0; e < EACH; ++e) {
            size_t at = K_LIES_ALONG ? size_t(outer) * stride + k + e : size_t(k + e) * stride + outer;
            word |= uint32_t(from[at]) << (8 * sizeof(T) * e);
        }
        for (int other = n; other < N; other += 4) all.v[other] = word;
    }
    return all;
}
// Where sum i of a lane lies.
template <bool ALONG_ROWS> __forceinline__ size_t place_of_sum(int i, uint32_t stride) {
    unsigned lane = laneid(), row = lane / 4 + 8 * (i / 2 % 2), column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    return ALONG_ROWS ? size_t(row) * stride + column : size_t(column) * stride + row;
}
// T: float, or uint32_t of two halves.
template <class T> using SumOf = std::conditional_t<std::is_same<T, float>::value, float, uint16_t>;
template <class T> constexpr int SUMS = 8 * sizeof(SumOf<T>) / sizeof(T);
template <class T, bool ALONG_ROWS>
__forceinline__ Parts<T, SUMS<T>> tile_sums(const char* place, uint32_t stride) {
    check_tile(place, stride * sizeof(SumOf<T>));
    SumOf<T> sums[8];
    for (int i = 0; i < 8; ++i)
        sums[i] = reinterpret_cast<const SumOf<T>*>(place)[place_of_sum<ALONG_ROWS>(i, stride)];
    Parts<T, SUMS<T>> all;
    __builtin_memcpy(&all, sums, sizeof all);
    return all;
}
template <class T, bool ALONG_ROWS>
__forceinline__ void store_tile(char* place, uint32_t stride, const T (&all)[SUMS<T>]) {
    check_tile(place, stride * sizeof(SumOf<T>));
    SumOf<T> sums[8];
    __builtin_memcpy(sums, all, sizeof sums);
    for (int i = 0; i < 8; ++i)
        reinterpret_cast<SumOf<T>*>(place)[place_of_sum<ALONG_ROWS>(i, stride)] = sums[i];
}
__forceinline__ void widen(float (&to)[8], const float (&from)[8]) { __builtin_memcpy(to, from, sizeof to); }
__forceinline__ void widen(float (&to)[8], const uint32_t (&from)[4]) {
    for (int i = 0; i < 8; ++i) to[i] = from_f16(uint16_t(from[i / 2] >> (16 * (i % 2))));
}
// Sums in halves are rounded once behind all products.
template <class T, class D, int N, class C, int M>
__forceinline__ Parts<D, SUMS<D>> multiplied_tiles(const uint32_t (&a)[N], const uint32_t (&b)[N], const C (&c)[M]) {
    static_assert(M == SUMS<C>, "all sums");
    float sums[8];
    widen(sums, c);
    unsigned of_a[4] = {a[0], a[1], a[2], a[3]};
    for (int half = 0; half < 2; ++half) {
        float part[4];
        __builtin_memcpy(part, sums + 4 * half, sizeof part);
        multiply_add<T>(part, of_a, b[2 * half], b[2 * half + 1]);
        __builtin_memcpy(sums + 4 * half, part, sizeof part);
    }
    Parts<D, SUMS<D>> all;
    if constexpr (std::is_same<D, float>::value)
        __builtin_memcpy(&all, sums, sizeof all);
    else
        for (int i = 0; i < 4; ++i) all.v[i] = two_f16x2(sums[2 * i + 1], sums[2 * i]);
    return all;
}
}  // namespace ptx
}  // namespace emu
