// nvcuda::wmma: tiles of 16 x 16 by 16 of halves and by 8 of TF32, sums in f32, or in __half.
//
// How a fragment's elements lie in the lanes is not documented for a GPU, and is its own matter
// here: that of mma.sync, two of which make one mma_sync. The memory traffic that is counted for
// load_matrix_sync is therefore this file's, not a GPU's.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace nvcuda {
namespace wmma {
struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major, mem_col_major };
namespace precision {
struct tf32 {};
}

template <class Use, int M, int N, int K, class T, class Layout = void> struct fragment {
    static_assert(M < 0, "the emulator knows fragments of 16 x 16 by 16 of __half and "
                         "__nv_bfloat16, by 8 of precision::tf32, and accumulators of float and __half");
};
#define EMU_FRAGMENT(Use, K, T, Element, COUNT)                                            \
    template <class Layout> struct fragment<Use, 16, 16, K, T, Layout> {                   \
        static constexpr int num_elements = COUNT;                                         \
        Element x[COUNT];                                                                  \
    };
EMU_FRAGMENT(matrix_a, 16, __half, __half, 8)
EMU_FRAGMENT(matrix_b, 16, __half, __half, 8)
EMU_FRAGMENT(matrix_a, 16, __nv_bfloat16, __nv_bfloat16, 8)
EMU_FRAGMENT(matrix_b, 16, __nv_bfloat16, __nv_bfloat16, 8)
EMU_FRAGMENT(matrix_a, 8, precision::tf32, float, 4)
EMU_FRAGMENT(matrix_b, 8, precision::tf32, float, 4)
EMU_FRAGMENT(accumulator, 16, float, float, 8)
EMU_FRAGMENT(accumulator, 8, float, float, 8)
EMU_FRAGMENT(accumulator, 16, __half, __half, 8)
#undef EMU_FRAGMENT

__forceinline__ float __float_to_tf32(float v) {
    return __uint_as_float(emu::to_tf32(__float_as_uint(v)));
}

template <class Use, int K, class T, class L, class V>
__forceinline__ void fill_fragment(fragment<Use, 16, 16, K, T, L>& f, V value) {
    for (int i = 0; i < f.num_elements; ++i) f.x[i] = value;
}
}  // namespace wmma
}  // namespace nvcuda

namespace emu {
__forceinline__ int wmma_lane() {
    uint3 t = threadIdx, n = blockDim;
    return int((t.x + n.x * (t.y + n.y * t.z)) % 32);
}
__forceinline__ void wmma_address(const void* address, size_t row_bytes) {
    emu_tile_address(address, 32);
    if (row_bytes % 16 != 0) emu_misaligned("the distance of a wmma tile's rows", 16);
}
// Halves: eight rows of 8 at a time. A tile's upper left, lower left, upper right and lower right
// quarter are the registers of A, as it is; of B, transposed.
template <class T>
__forceinline__ void wmma_load(T (&x)[8], const T* from, unsigned ldm, bool down_first,
                               bool transposed) {
    wmma_address(from, ldm * sizeof(T));
    int lane = wmma_lane(), lower = down_first ? lane / 8 % 2 : lane / 16;
    int right = down_first ? lane / 16 : lane / 8 % 2;
    unsigned registers[4];
    load_matrices(registers, from + (lower * 8 + lane % 8) * ldm + right * 8, transposed, false);
    for (int i = 0; i < 8; ++i) x[i].__x = uint16_t(registers[i / 2] >> (16 * (i % 2)));
}
// TF32: register i of A is row g + 8 (i % 2), k t + 4 (i / 2); of B k t + 4 (i % 2), column
// g + 8 (i / 2).
__forceinline__ void wmma_load(float (&x)[4], const float* from, unsigned ldm, bool of_a,
                               bool row_major) {
    wmma_address(from, ldm * sizeof(float));
    int lane = wmma_lane();
    for (int i = 0; i < 4; ++i) {
        int outer = lane / 4 + 8 * (of_a ? i % 2 : i / 2), k = lane % 4 + 4 * (of_a ? i / 2 : i % 2);
        bool k_along_row = of_a == row_major;
        x[i] = k_along_row ? from[outer * ldm + k] : from[k * ldm + outer];
    }
}
template <class T> __forceinline__ unsigned wmma_register(const T* x) {
    return x[0].__x | unsigned(x[1].__x) << 16;
}
template <class T>
__forceinline__ void wmma_registers(unsigned (&to)[4], const T (&x)[8]) {
    for (int i = 0; i < 4; ++i) to[i] = wmma_register(&x[2 * i]);
}
__forceinline__ void wmma_registers(unsigned (&to)[4], const float (&x)[4]) {
    for (int i = 0; i < 4; ++i) to[i] = __float_as_uint(x[i]);
}
// Where element i of a lane's sums lies.
__forceinline__ int wmma_row(int i) { return wmma_lane() / 4 + 8 * (i / 2 % 2); }
__forceinline__ int wmma_column(int i) { return i / 4 * 8 + wmma_lane() % 4 * 2 + i % 2; }
template <class T> struct wmma_operand { using type = T; };
template <> struct wmma_operand<nvcuda::wmma::precision::tf32> { using type = float; };
}  // namespace emu

namespace nvcuda {
namespace wmma {
template <int K, class T, class E>
__forceinline__ void load_matrix_sync(fragment<matrix_a, 16, 16, K, T, row_major>& f, const E* from,
                                      unsigned ldm) {
    emu::wmma_load(f.x, from, ldm, true, K != 16);
}
template <int K, class T, class E>
__forceinline__ void load_matrix_sync(fragment<matrix_a, 16, 16, K, T, col_major>& f, const E* from,
                                      unsigned ldm) {
    if constexpr (K == 16)
        emu::wmma_load(f.x, from, ldm, false, true);
    else
        emu::wmma_load(f.x, from, ldm, true, false);
}
template <int K, class T, class E>
__forceinline__ void load_matrix_sync(fragment<matrix_b, 16, 16, K, T, row_major>& f, const E* from,
                                      unsigned ldm) {
    if constexpr (K == 16)
        emu::wmma_load(f.x, from, ldm, true, true);
    else
        emu::wmma_load(f.x, from, ldm, false, true);
}
template <int K, class T, class E>
__forceinline__ void load_matrix_sync(fragment<matrix_b, 16, 16, K, T, col_major>& f, const E* from,
                                      unsigned ldm) {
    emu::wmma_load(f.x, from, ldm, false, false);
}
template <int K, class E>
__forceinline__ void load_matrix_sync(fragment<accumulator, 16, 16, K, E>& f, const E* from,
                                      unsigned ldm, layout_t layout) {
    emu::wmma_address(from, ldm * sizeof(E));
    for (int i = 0; i < 8; ++i) {
        unsigned r = emu::wmma_row(i), c = emu::wmma_column(i);
        f.x[i] = layout == mem_row_major ? from[r * ldm + c] : from[c * ldm + r];
    }
}
template <int K, class E>
__forceinline__ void store_matrix_sync(E* to, const fragment<accumulator, 16, 16, K, E>& f,
                                       unsigned ldm, layout_t layout) {
    emu::wmma_address(to, ldm * sizeof(E));
    for (int i = 0; i < 8; ++i) {
        unsigned r = emu::wmma_row(i), c = emu::wmma_column(i);
        (layout == mem_row_major ? to[r * ldm + c] : to[c * ldm + r]) = f.x[i];
    }
}
// d = a b + c. Sums of halves are rounded once behind all products.
template <int K, class T, class LA, class LB, class D, class C>
__forceinline__ void mma_sync(fragment<accumulator, 16, 16, K, D>& d,
                              const fragment<matrix_a, 16, 16, K, T, LA>& a,
                              const fragment<matrix_b, 16, 16, K, T, LB>& b,
                              const fragment<accumulator, 16, 16, K, C>& c) {
    unsigned of_a[4], of_b[4];
    emu::wmma_registers(of_a, a.x);
    emu::wmma_registers(of_b, b.x);
    for (int half = 0; half < 2; ++half) {
        float sum[4];
        for (int i = 0; i < 4; ++i) sum[i] = float(c.x[4 * half + i]);
        emu::multiply_add<typename emu::wmma_operand<T>::type>(sum, of_a, of_b[2 * half],
                                                               of_b[2 * half + 1]);
        for (int i = 0; i < 4; ++i) d.x[4 * half + i] = D(sum[i]);
    }
}
}  // namespace wmma
}  // namespace nvcuda
