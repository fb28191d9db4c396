// Each line compares with what CUDA's documentation says; out[i] is the line of the first that
// differs, of thread i, or 0.
#include "../../compat/device.h"

#include "../../compat/cooperative_groups.h"
#include "../../compat/cooperative_groups/memcpy_async.h"
#include "../../compat/cooperative_groups/reduce.h"
#include "../../compat/cooperative_groups/scan.h"
#include "../../compat/cuda/barrier"
#include "../../compat/cuda/pipeline"
#include "../../compat/cuda/std/limits"
#include "../../compat/cuda_bf16.h"
#include "../../compat/cuda_fp16.h"
#include "../../compat/cuda_fp8.h"
#include "../../compat/math_constants.h"

namespace cg = cooperative_groups;

#define SIZES(T, size, alignment) static_assert(sizeof(T) == size && alignof(T) == alignment, #T)
SIZES(char1, 1, 1);
SIZES(uchar2, 2, 2);
SIZES(char3, 3, 1);
SIZES(char4, 4, 4);
SIZES(ushort3, 6, 2);
SIZES(float2, 8, 8);
SIZES(float3, 12, 4);
SIZES(float4, 16, 16);
SIZES(long2, 16, 16);
SIZES(ulonglong2, 16, 16);
SIZES(double3, 24, 8);
SIZES(double4, 32, 16);
SIZES(longlong4, 32, 16);
static_assert(std::is_same<decltype(min(1, 2u)), unsigned>::value, "");
static_assert(std::is_same<decltype(max(1.0f, 2.0)), double>::value, "");
static_assert(std::is_same<decltype(abs(-1.0f)), float>::value, "");

#define SAME(a, b) \
    if (!((a) == (b)) && wrong == 0) wrong = __LINE__
#define NEAR(a, b) \
    if (!(fabs(double(a) - double(b)) < 1e-6 * (1 + fabs(double(b)))) && wrong == 0) wrong = __LINE__

__global__ void integers(int* out) {
    int wrong = 0;
    SAME(__brev(1), 0x80000000u);
    SAME(__brev(0x12345678u), 0x1e6a2c48u);
    SAME(__brevll(1), 1ull << 63);
    SAME(__clzll(1), 63);
    SAME(__clzll(0), 64);
    SAME(__ffsll(1ll << 40), 41);
    SAME(__fns(0x10u, 0, 1), 4u);
    SAME(__byte_perm(0x33221100, 0x77665544, 0x7531), 0x77553311u);
    SAME(__byte_perm(0x000080ff, 0, 0x9999), 0xffffffffu);
    SAME(__mul24(-3, 5), -15);
    SAME(__umul24(0x1000002, 3), 6u);
    SAME(__mulhi(-1, 1), -1);
    SAME(__umulhi(0x80000000u, 4), 2u);
    SAME(__mul64hi(-1, 1), -1);
    SAME(__umul64hi(1ull << 63, 4), 2ull);
    SAME(__sad(-2, 3, 10u), 15u);
    SAME(__hadd(INT_MAX, INT_MAX), INT_MAX);
    SAME(__rhadd(-2, -1), -1);
    SAME(__funnelshift_l(0x80000000u, 1, 1), 3u);
    SAME(__funnelshift_r(0, 1, 1), 0x80000000u);
    SAME(__funnelshift_lc(7, 1, 40), 7u);
    SAME(__funnelshift_rc(7, 9, 32), 9u);
    SAME(__dp4a(0x01020304, 0x01010101, 5), 15);
    SAME(__dp4a(0x000000ff, 0x00000002, 0), -2);
    SAME(__dp4a(0xffu, 2u, 0u), 510u);
    SAME(__dp2a_lo(0x00020003, 0x0705, 1), 30);
    SAME(__vadd4(0xff010203u, 0x01010101u), 0x00020304u);
    SAME(__vaddus4(0xff010203u, 0x01010101u), 0xff020304u);
    SAME(__vsubss2(0x80000001u, 0x00010001u), 0x80000000u);
    SAME(__vmaxs4(0xff010203u, 0x00000000u), 0x00010203u);
    SAME(__vcmpeq4(0x01020304u, 0x01000304u), 0xff00ffffu);
    SAME(__vsetltu2(0x00010002u, 0x00020002u), 0x00010000u);
    SAME(__vsadu4(0x01020304u, 0x04030201u), 8u);
    SAME(__vavgs2(0xffff0001u, 0xfffe0002u), 0xfffe0002u);
    SAME(__vabsss4(0x80ff0001u), 0x7f010001u);
    out[threadIdx.x] = wrong;
}

__global__ void numbers(int* out) {
    int wrong = 0;
    SAME(__float2int_rn(2.5f), 2);
    SAME(__float2int_rz(-2.5f), -2);
    SAME(__float2int_rd(-2.5f), -3);
    SAME(__float2int_ru(2.1f), 3);
    SAME(__float2int_rn(1e20f), INT_MAX);
    SAME(__float2int_rn(-1e20f), INT_MIN);
    SAME(__float2int_rn(CUDART_NAN_F), 0);
    SAME(__float2uint_rn(-5.0f), 0u);
    SAME(__float2uint_rz(4e9f), 4000000000u);
    SAME(__double2ull_rz(1e30), ~0ull);
    SAME(__double2ll_rn(-3.5), -4);
    SAME(__int2float_rn(16777217), 16777216.0f);
    SAME(__int2float_ru(16777217), 16777218.0f);
    SAME(__int2float_rz(-16777217), -16777216.0f);
    SAME(__int2float_rd(-16777217), -16777218.0f);
    SAME(__ull2float_rz(~0ull), 0x1.fffffep63f);
    SAME(__double2float_rd(1e300), 0x1.fffffep127f);
    SAME(__double2float_rn(0.1), 0.1f);
    SAME(__fadd_rz(1.0f, 0x1.8p-24f), 1.0f);
    SAME(__fadd_ru(1.0f, 0x1p-40f), 0x1.000002p0f);
    SAME(__fadd_rd(1.0f, -0x1p-40f), 0x1.fffffep-1f);
    SAME(__fmul_rz(0x1.000002p0f, 0x1.000002p0f), 0x1.000004p0f);
    SAME(__fdiv_ru(1.0f, 3.0f), 0x1.555556p-2f);
    SAME(__fdiv_rd(1.0f, 3.0f), 0x1.555554p-2f);
    SAME(__fsqrt_rd(2.0f) < __fsqrt_ru(2.0f), true);
    SAME(__fmaf_rz(1.0f, 1.0f, -0x1p-40f), 0x1.fffffep-1f);
    SAME(__dadd_ru(1.0, 0x1p-80), 0x1.0000000000001p0);
    SAME(__fma_rn(3, 4, 5), 17.0);
    SAME(__drcp_rn(4.0), 0.25);
    SAME(1.0f + 0x1p-40f, 1.0f);  // the mode is back
    SAME(__double_as_longlong(1.0), 0x3ff0000000000000ll);
    SAME(__longlong_as_double(0x4000000000000000ll), 2.0);
    SAME(__hiloint2double(0x3ff00000, 0), 1.0);
    SAME(__double2hiint(-2.0), int(0xc0000000));
    SAME(__double2loint(0x1.0000000000003p0), 3);
    SAME(sinpi(1.0), 0.0);
    SAME(cospif(0.5f), 0.0f);
    SAME(cospi(3.0), -1.0);
    NEAR(sinpif(0.25f), CUDART_SQRT_HALF);
    NEAR(sinpi(-1.5), 1.0);
    NEAR(rcbrtf(8.0f), 0.5);
    NEAR(exp10f(2.0f), 100);
    NEAR(erfcx(1.0), 0.427583576155807);
    NEAR(erfcx(20.0), 0.0281743487410513);
    NEAR(erfinv(0.5), 0.476936276204470);
    NEAR(erfinv(-0.9), -1.163087153676674);
    NEAR(erfcinv(1.5), -0.476936276204470);
    NEAR(normcdf(1.0), 0.841344746068543);
    NEAR(normcdfinv(0.975), 1.959963984540054);
    NEAR(normcdfinvf(0.25f), -0.674489750196082);
    NEAR(normcdfinv(1e-10), -6.361340902404056);
    NEAR(rhypotf(3.0f, 4.0f), 0.2);
    NEAR(norm3df(2.0f, 3.0f, 6.0f), 7);
    NEAR(norm4d(1, 1, 1, 1), 2);
    NEAR(cyl_bessel_i0f(1.0f), 1.2660658777520083);
    float s, c;
    sincospif(0.5f, &s, &c);
    SAME(s, 1.0f);
    SAME(c, 0.0f);
    sincosf(0.0f, &s, &c);
    SAME(c, 1.0f);
    SAME(min(-1, 1u), 1u);
    SAME(max(1.5f, 2.5), 2.5);
    SAME(abs(-1.5f), 1.5f);
    out[threadIdx.x] = wrong;
}

__global__ void halves(int* out) {
    int wrong = 0;
    __half2 h = __floats2half2_rn(1, 2);
    h += __float2half2_rn(1);
    SAME(__low2float(h), 2.0f);
    SAME(float(hsqrt(__float2half(9.0f))), 3.0f);
    SAME(float((h / h).y), 1.0f);
    SAME(__hgt(h.y, h.x), true);
    SAME(__hbeq2(h, h), true);
    SAME(float(__hgt2(h, __float2half2_rn(2)).y), 1.0f);
    SAME(__half_as_ushort(__float2half_rz(0.1f)), 0x2e66);
    SAME(__half_as_ushort(__float2half_ru(0.1f)), 0x2e67);
    SAME(__half2int_rn(__float2half(2.5f)), 2);
    SAME(__hisinf(__float2half(-1e6f)), -1);
    SAME(float(__habs(__float2half(-2.0f))), 2.0f);
    SAME(float(hexp(__float2half(0.0f))), 1.0f);
    SAME(float(__hadd_sat(h.x, h.y)), 1.0f);
    __nv_bfloat162 b = __float22bfloat162_rn(make_float2(3, -4));
    b *= b;
    SAME(__low2float(b), 9.0f);
    SAME(float(h2sqrt(b).y), 4.0f);
    SAME(__bfloat16_as_ushort(__float2bfloat16_rd(-0x1.01p0f)), 0xbf81);
    SAME(__bfloat162int_rz(__float2bfloat16(-2.5f)), -2);
    __half2 with_nan(__ushort_as_half(0xfc01), __float2half(1.0f)), ones = __float2half2_rn(1);
    SAME(__half_as_ushort(__hmin2_nan(with_nan, ones).x), 0x7fff);
    SAME(__half_as_ushort(__hmin2(with_nan, ones).x), 0x3c00);
    SAME(float(__hmax2_nan(with_nan, h).y), 3.0f);
    SAME(float(__hltu2(with_nan, ones).x), 1.0f);
    SAME(__hbneu2(with_nan, ones), false);
    SAME(__hequ2_mask(with_nan, h), 0x0000ffffu);
    SAME(__heq2_mask(with_nan, ones), 0xffff0000u);
    SAME(float(__hadd2_sat(ones, with_nan).y), 1.0f);
    SAME(__half_as_ushort(__int2half_rz(70000)), 0x7bff);
    SAME(__half_as_ushort(__int2half_ru(2049)), 0x6801);
    SAME(__bfloat16_as_ushort(__ll2bfloat16_rd(-((1ll << 62) + 1))), 0xde81);
    SAME(__half2char_rz(__float2half(-200.0f)), -128);
    __half2 product = __hcmadd(__floats2half2_rn(1, 2), __floats2half2_rn(3, 4), ones);
    SAME(float(product.x), -4.0f);
    SAME(float(product.y), 11.0f);
    __half_raw raw = h.x;
    SAME(raw.x, 0x4000);
    out[threadIdx.x] = wrong;
}

// Of each f16 its four numbers of 8 bits: e4m3 and e5m2, each unlimited and limited.
__global__ void narrowed(unsigned char* out) {
    for (unsigned i = threadIdx.x; i < 65536; i += blockDim.x) {
        __half_raw h(static_cast<unsigned short>(i));
        uchar4 all;
        all.x = __nv_cvt_halfraw_to_fp8(h, __NV_NOSAT, __NV_E4M3);
        all.y = __nv_fp8_e4m3(__half(h)).__x;
        all.z = __nv_cvt_halfraw_to_fp8(h, __NV_NOSAT, __NV_E5M2);
        all.w = __nv_fp8x2_e5m2(make_float2(0, __half2float(h))).__x >> 8;
        reinterpret_cast<uchar4*>(out)[i] = all;
    }
}
// Of each number of 8 bits its value: as e4m3, and as e5m2.
__global__ void widened(float* out) {
    unsigned i = threadIdx.x;
    __nv_fp8_e4m3 one;
    __nv_fp8x4_e5m2 four;
    one.__x = static_cast<unsigned char>(i), four.__x = i << 24;
    out[2 * i] = float(one), out[2 * i + 1] = float4(four).w;
}

// By 64 threads.
__global__ void groups(int* out, const int* x) {
    int wrong = 0, i = int(threadIdx.x);
    cg::thread_block block = cg::this_thread_block();
    auto warp = cg::tiled_partition<32>(block);
    cg::thread_block_tile<8> eight = cg::tiled_partition<8>(warp);
    SAME(warp.meta_group_rank(), unsigned(i / 32));
    SAME(cg::tiled_partition<8>(warp).meta_group_rank(), unsigned(i % 32 / 8));
    SAME(cg::tiled_partition<8>(warp).meta_group_size(), 4u);
    int lane = int(warp.thread_rank());
    SAME(block.group_dim().x, 64u);
    SAME(cg::reduce(warp, lane, cg::plus<int>()), 496);
    SAME(cg::reduce(eight, lane, cg::greater<int>()), lane / 8 * 8 + 7);
    SAME(cg::reduce(eight, lane, cg::less<int>()), lane / 8 * 8);
    SAME(cg::reduce(warp, 1 << lane, cg::bit_or<int>()), -1);
    auto add = [](double2 a, double2 b) { return make_double2(a.x + b.x, a.y + b.y); };
    SAME(cg::reduce(warp, make_double2(1, lane), add).y, 496.0);
    SAME(cg::inclusive_scan(eight, 2), lane % 8 * 2 + 2);
    SAME(cg::exclusive_scan(warp, 1), lane);
    SAME(eight.match_any(lane % 2), lane % 2 ? 0xaau : 0x55u);
    SAME(warp.shfl(make_double2(lane, -lane), 5).y, -5.0);
    if (i % 3 == 1) {
        cg::coalesced_group some = cg::coalesced_threads();
        int rank = int(some.thread_rank()), size = int(some.size());
        SAME(size, i < 32 ? 11 : 10);
        SAME(rank, (lane - (i < 32 ? 1 : 2)) / 3);
        SAME(cg::reduce(some, rank, cg::plus<int>()), size * (size - 1) / 2);
        SAME(cg::inclusive_scan(some, 1), rank + 1);
        SAME(some.shfl(lane, 0), i < 32 ? 1 : 2);
        SAME(some.shfl_down(rank, 1), rank + 1 < size ? rank + 1 : rank);
        SAME(some.ballot(rank < 2), 3u);
        SAME(cg::tiled_partition(some, 4).meta_group_rank(), unsigned(rank / 4));
        SAME(cg::tiled_partition(some, 4).thread_rank(), unsigned(rank % 4));
    }
    warp.sync();
    auto thirds = cg::labeled_partition(warp, lane % 3);
    SAME(thirds.size(), lane % 3 == 2 ? 10u : 11u);
    SAME(thirds.meta_group_rank(), unsigned(lane % 3));
    SAME(thirds.meta_group_size(), 3u);
    SAME(cg::binary_partition(warp, lane < 20).size(), lane < 20 ? 20u : 12u);
    cg::thread_group sixteen = cg::tiled_partition(block, 16);
    SAME(sixteen.thread_rank(), unsigned(i % 16));
    SAME(cg::reduce(sixteen, 1, cg::plus<int>()), 16);
    cg::thread_group any = block;
    SAME(any.size(), 64u);
    SAME(cg::thread_rank(any), unsigned(i));
    __shared__ __align__(16) int copy[64];
    cg::memcpy_async(block, copy, x, sizeof copy);
    cg::wait(block);
    SAME(copy[63 - i], 163 - i);
    cg::sync(any);
    SAME(__shfl_xor(lane, 1), lane ^ 1);
    SAME(__shfl_down(lane, 4), lane < 28 ? lane + 4 : lane);
    SAME(__ballot(lane < 4), 15u);
    SAME(__any(lane == 3) && !__all(lane == 3), true);
    out[i] = wrong;
}

__global__ void atomics(unsigned* sums, double* total, unsigned short* locks) {
    __shared__ unsigned own;
    if (threadIdx.x == 0) own = 0;
    __syncthreads();
    atomicAdd_block(&own, 1u);
    __syncthreads();
    if (threadIdx.x == 0) atomicAdd(&sums[0], own);
    atomicMax_system(&sums[1], threadIdx.x);
    atomicInc_system(&sums[2], 9u);
    atomicAdd(total, 0.5);
    unsigned short seen = 0, old;
    while ((old = atomicCAS(locks, seen, (unsigned short)(seen + 1))) != seen) seen = old;
}

__global__ void vectors(double4* wide, const longlong2* pairs, char4* bytes) {
    longlong2 pair = __ldg(&pairs[threadIdx.x]);
    wide[threadIdx.x] = make_double4(double(pair.x), double(pair.y), 1, 2);
    char4 four = bytes[threadIdx.x];
    bytes[threadIdx.x] = make_char4(four.w, four.z, four.y, four.x);
}

__global__ void asserts(const int* x) {
    assert(x[threadIdx.x] >= 0 && "not negative");
}

// Each block adds its part and counts itself; the last one sees all parts.
__global__ void last_block(int* parts, unsigned* count, int* out, const int* x) {
    __shared__ bool is_last;
    __shared__ int staged[64];
    __shared__ cuda::barrier<cuda::thread_scope_block> barrier;
    cg::thread_block block = cg::this_thread_block();
    if (threadIdx.x == 0) init(&barrier, blockDim.x);
    block.sync();
    cuda::memcpy_async(block, staged, x, cuda::aligned_size_t<4>(sizeof staged), barrier);
    barrier.arrive_and_wait();
    int neighbour = staged[63 - threadIdx.x];
    barrier.wait(barrier.arrive());
    staged[threadIdx.x] = neighbour;
    auto pipe = cuda::make_pipeline();
    int own;
    pipe.producer_acquire();
    cuda::memcpy_async(&own, &staged[threadIdx.x], sizeof own, pipe);
    pipe.producer_commit();
    cuda::pipeline_consumer_wait_prior<0>(pipe);
    atomicAdd(&parts[blockIdx.x], own);
    block.sync();
    if (threadIdx.x == 0) {
        cuda::atomic_ref<unsigned, cuda::thread_scope_device> arrived(*count);
        is_last = arrived.fetch_add(1, cuda::memory_order_acq_rel) == gridDim.x - 1;
        if (is_last) {
            int sum = 0, most = cuda::std::numeric_limits<int>::min();
            for (unsigned b = 0; b < gridDim.x; ++b) sum += parts[b], most = max(most, parts[b]);
            out[0] = sum, out[1] = most;
        }
    }
}

// The first 32 threads bring 8 tiles into 2 stages, the others add them up.
__global__ void piped(const int* x, int* out) {
    __shared__ int tiles[2][32];
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state, both;
    cg::thread_block block = cg::this_thread_block();
    bool produces = block.thread_rank() < 32;
    auto pipe = blockIdx.x == 0 ? cuda::make_pipeline(block, &state, size_t(32))
                                : cuda::make_pipeline(block, &state, produces ? cuda::pipeline_role::producer
                                                                              : cuda::pipeline_role::consumer);
    if (produces) {
        for (int tile = 0; tile < 8; ++tile) {
            pipe.producer_acquire();
            cuda::memcpy_async(&tiles[tile % 2][threadIdx.x], &x[32 * tile + threadIdx.x], sizeof(int), pipe);
            pipe.producer_commit();
        }
    } else {
        int sum = 0;
        for (int tile = 0; tile < 8; ++tile) {
            pipe.consumer_wait();
            sum += tiles[tile % 2][63 - threadIdx.x];
            pipe.consumer_release();
        }
        out[32 * blockIdx.x + threadIdx.x - 32] = sum;
    }
    pipe.quit();
    block.sync();
    // All threads are both, one stage ahead.
    auto one = cuda::make_pipeline(block, &both);
    auto fetch = [&](int tile) {
        one.producer_acquire();
        cuda::memcpy_async(block, tiles[tile % 2], x + 32 * tile, sizeof tiles[0], one);
        one.producer_commit();
    };
    int sum = 0;
    fetch(0);
    for (int tile = 0; tile < 8; ++tile) {
        if (tile < 7) fetch(tile + 1);
        one.consumer_wait();
        sum += tiles[tile % 2][31 - threadIdx.x % 32];
        one.consumer_release();
    }
    if (threadIdx.x < 32) out[64 + 32 * blockIdx.x + threadIdx.x] = sum;
}

__global__ void handed_over(int* data, cuda::atomic<int, cuda::thread_scope_block>* flag) {
    if (threadIdx.x == 0) {
        data[0] = 42;
        flag->store(1, cuda::std::memory_order_release);
    } else if (threadIdx.x == 32) {
        while (flag->load(cuda::memory_order_acquire) == 0) {}
        data[1] = data[0];
        int expected = 1;
        if (flag->compare_exchange_strong(expected, 5)) flag->fetch_max(7);
    }
}
