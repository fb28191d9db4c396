// One, two and four matrices, as they are and transposed.
template <int N, bool TRANSPOSED> __global__ void k(unsigned* out) {
    __shared__ __align__(16) unsigned tile[4 * 8 * 4];
    for (int n = threadIdx.x; n < 128; n += 32) tile[n] = 0;
    __syncthreads();
    unsigned from[N];
    for (int n = 0; n < N; ++n) from[n] = 0x10001 * (threadIdx.x + 1) + 0x1000000 * n;
    if constexpr (TRANSPOSED) store_matrices_transposed<N>(tile + 4 * threadIdx.x, from);
    else store_matrices<N>(tile + 4 * threadIdx.x, from);
    __syncthreads();
    for (int n = threadIdx.x; n < 128; n += 32) out[n] = tile[n];
}
void run(unsigned* out) {
    k<1, false><<<1, 32>>>(out), k<2, false><<<1, 32>>>(out + 128), k<4, false><<<1, 32>>>(out + 256);
    k<1, true><<<1, 32>>>(out + 384), k<2, true><<<1, 32>>>(out + 512), k<4, true><<<1, 32>>>(out + 640);
}
