// C = Σ_s P_s, in T's: what the second product takes from the first.
//
//   C_ij     = power_j Σ_s P_s,ij               power_j: of two, so that the column's largest is 2^14 to 2^15
//   factor_j = scale / power_j                  scale = 1 / √DHQK
//
// C grows with S, and f16 ends at 65504: a column of 65536 products 1 · 1 would be infinite. Times a power of two it
// is in range whatever S, K and V are, and its elements are rounded as they would be without.
//
// A block has 32 columns of a head, each by 8 threads that lie in different warps. A thread adds up segments one after
// the other, so that the order never changes, and leaves its sums in the first segment's place.
//
// P: heads x segments x dhqk x dhhv, C: heads x dhqk x dhhv, factor: heads x dhhv. A grid of heads x ceil(dhhv / 32).
#include "column_power.cuh"
#include "lab/scalar.cuh"

using namespace lab;

template <class T>
__global__ void __launch_bounds__(256)
    qkv_state(float* parts, T* state, float* factor, int segments, int dhqk, int dhhv, float scale) {
    __shared__ float largest[8][32];
    long long head = blockIdx.x, cells = dhqk * dhhv;
    int c = threadIdx.x % 32, r = threadIdx.x / 32, j = blockIdx.y * 32 + c;
    float* first = parts + head * segments * cells;

    float most = 0;
    for (int i = r; i < dhqk && j < dhhv; i += 8) {
        float sum = 0;
        for (int s = 0; s < segments; ++s) sum += first[s * cells + i * dhhv + j];
        first[i * dhhv + j] = sum;
        most = fmaxf(most, fabsf(sum));
    }
    largest[r][c] = most;
    __syncthreads();  // a column's largest is among those of eight threads
    for (int n = 0; n < 8; ++n) most = fmaxf(most, largest[n][c]);
    float power = column_power(most);
    for (int i = r; i < dhqk && j < dhhv; i += 8)
        state[head * cells + i * dhhv + j] = from_math<T>(first[i * dhhv + j] * power);
    if (r == 0 && j < dhhv) factor[head * dhhv + j] = scale / power;
}
