// A product of 64 x 64 by one warpgroup of Hopper, with inline PTX: TMA brings A and B, an mbarrier says when, wgmma
// multiplies. With -D FORGETFUL nobody waits for the mbarrier. For --arch sm_90a; nvcc needs -arch=sm_90a -lcuda.
#include <cstdint>
#include <cstdio>
#include <cuda.h>
#include <cuda_bf16.h>

constexpr int M = 64, N = 64, K = 64;

__device__ uint32_t address(const void* shared) { return static_cast<uint32_t>(__cvta_generic_to_shared(shared)); }

__device__ void load(void* to, const CUtensorMap* map, uint64_t* barrier, int x, int y) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
            address(to)),
        "l"(map), "r"(x), "r"(y), "r"(address(barrier))
        : "memory");
}

__device__ void wait(uint64_t* barrier, uint32_t parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "AGAIN:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra DONE;\n"
        "bra AGAIN;\n"
        "DONE:\n"
        "}\n" ::"r"(address(barrier)),
        "r"(parity)
        : "memory");
}

// Rows of 128 bytes, swizzled.
__device__ uint64_t descriptor(const void* tile) {
    return (address(tile) & 0x3ffff) >> 4 | uint64_t(1) << 16 | uint64_t(1024 >> 4) << 32 | uint64_t(1) << 62;
}

__device__ void multiply(float (&d)[32], uint64_t a, uint64_t b, int adds) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.b32 p, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "%32, %33, p, 1, 1, 0, 0;\n"
        "}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
          "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
          "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
          "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "l"(a), "l"(b), "r"(adds));
}

// C [M, N] = A [M, K] B [N, K] transposed.
__global__ void product(const __grid_constant__ CUtensorMap A, const __grid_constant__ CUtensorMap B, float* C) {
    __shared__ __align__(1024) __nv_bfloat16 a[M * K], b[N * K];
    __shared__ uint64_t barrier;
    int t = threadIdx.x;
    if (t == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address(&barrier)), "r"(1));
        asm volatile("fence.mbarrier_init.release.cluster;");
    }
    __syncthreads();
    if (t == 0) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(&barrier)),
                     "r"(unsigned(sizeof a + sizeof b)));
        load(a, &A, &barrier, 0, 0);
        load(b, &B, &barrier, 0, 0);
    }
#ifndef FORGETFUL
    wait(&barrier, 0);
#endif
    float d[32];
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    for (int k = 0; k < K; k += 16) multiply(d, descriptor(a) + k * 2 / 16, descriptor(b) + k * 2 / 16, k > 0);
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(0) : "memory");
    for (int n = 0; n < 32; ++n) {
        int row = t / 32 * 16 + t % 32 / 4 + n / 2 % 2 * 8, column = n / 4 * 8 + t % 4 * 2 + n % 2;
        C[row * N + column] = d[n];
    }
}

CUtensorMap map_of(__nv_bfloat16* x, cuuint64_t rows) {
    CUtensorMap map;
    cuuint64_t sizes[] = {K, rows}, strides[] = {K * sizeof *x};
    cuuint32_t box[] = {K, cuuint32_t(rows)}, steps[] = {1, 1};
    CUresult result = cuTensorMapEncodeTiled(
        &map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, x, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
        CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS) printf("no tensor map: %d\n", int(result));
    return map;
}

int main() {
    static __nv_bfloat16 a[M * K], b[N * K];
    static float c[M * N];
    for (int i = 0; i < M * K; ++i) a[i] = __float2bfloat16(float(i * 7 % 5 - 2));
    for (int i = 0; i < N * K; ++i) b[i] = __float2bfloat16(float(i * 3 % 7 - 3));
    __nv_bfloat16 *A, *B;
    float* C;
    cudaMalloc(&A, sizeof a);
    cudaMalloc(&B, sizeof b);
    cudaMalloc(&C, sizeof c);
    cudaMemcpy(A, a, sizeof a, cudaMemcpyHostToDevice);
    cudaMemcpy(B, b, sizeof b, cudaMemcpyHostToDevice);
    product<<<1, 128>>>(map_of(A, M), map_of(B, N), C);
    cudaMemcpy(c, C, sizeof c, cudaMemcpyDeviceToHost);
    int wrong = 0;
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < N; ++j) {
            float expected = 0;
            for (int k = 0; k < K; ++k) expected += __bfloat162float(a[i * K + k]) * __bfloat162float(b[j * K + k]);
            wrong += c[i * N + j] != expected;
        }
    printf("%d of %d wrong\n", wrong, M * N);
    return wrong != 0;
}
