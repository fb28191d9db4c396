// A product of 16 x 8 by tensor cores, with inline PTX as it is often written: cp.async, ldmatrix, mma.sync.
// With -D FORGETFUL it does not wait for its copies.
#include <cstdint>
#include <cstdio>
#include <cuda_fp16.h>

constexpr int M = 16, N = 8, K = 64, ROW = K + 8;  // rows apart by 16 bytes more: no bank conflicts

#define LDMATRIX_X4(r0, r1, r2, r3, address)                                           \
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"  \
                 : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3)                              \
                 : "r"(address))
#define LDMATRIX_X2(r0, r1, address)                                            \
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];\n"   \
                 : "=r"(r0), "=r"(r1)                                           \
                 : "r"(address))

// C [M, N] = A [M, K] B [N, K] transposed, by one warp.
__global__ void tile(const __half* A, const __half* B, float* C) {
    __shared__ __align__(16) __half a[M][ROW], b[N][ROW];
    int lane = threadIdx.x;
    for (int chunk = lane; chunk < (M + N) * K / 8; chunk += 32) {
        int row = chunk / (K / 8), column = chunk % (K / 8) * 8;
        const __half* from = row < M ? A + row * K + column : B + (row - M) * K + column;
        uint32_t to = __cvta_generic_to_shared(row < M ? &a[row][column] : &b[row - M][column]);
        asm volatile("cp.async.cg.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(16));
    }
    asm volatile("cp.async.commit_group;");
#ifndef FORGETFUL
    asm volatile("cp.async.wait_group %0;" ::"n"(0) : "memory");
#endif
    __syncthreads();
    float c[4] = {};
    for (int k = 0; k < K; k += 16) {
        uint32_t ra[4], rb[2];
        LDMATRIX_X4(ra[0], ra[1], ra[2], ra[3], (uint32_t)__cvta_generic_to_shared(&a[lane % 16][k + lane / 16 * 8]));
        LDMATRIX_X2(rb[0], rb[1], (uint32_t)__cvta_generic_to_shared(&b[lane % 8][k + lane / 8 % 2 * 8]));
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
            "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(ra[0]), "r"(ra[1]), "r"(ra[2]), "r"(ra[3]), "r"(rb[0]), "r"(rb[1]));
    }
    for (int n = 0; n < 4; ++n) C[(lane / 4 + n / 2 * 8) * N + lane % 4 * 2 + n % 2] = c[n];
}

int main() {
    static __half a[M * K], b[N * K];
    static float c[M * N];
    for (int i = 0; i < M * K; ++i) a[i] = __float2half(float(i * 7 % 5 - 2));
    for (int i = 0; i < N * K; ++i) b[i] = __float2half(float(i * 3 % 7 - 3));
    __half *A, *B;
    float* C;
    cudaMalloc(&A, sizeof a);
    cudaMalloc(&B, sizeof b);
    cudaMalloc(&C, sizeof c);
    cudaMemcpy(A, a, sizeof a, cudaMemcpyHostToDevice);
    cudaMemcpy(B, b, sizeof b, cudaMemcpyHostToDevice);
    tile<<<1, 32>>>(A, B, C);
    cudaMemcpy(c, C, sizeof c, cudaMemcpyDeviceToHost);
    int wrong = 0;
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < N; ++j) {
            float expected = 0;
            for (int k = 0; k < K; ++k) expected += __half2float(a[i * K + k]) * __half2float(b[j * K + k]);
            wrong += c[i * N + j] != expected;
        }
    printf("%d of %d wrong\n", wrong, M * N);
    return wrong != 0;
}
