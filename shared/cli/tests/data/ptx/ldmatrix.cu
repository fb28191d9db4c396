// Four matrices as they are, and transposed.
__global__ void k(unsigned* out) {
    __shared__ __align__(16) unsigned short tile[4 * 8 * 8];
    for (int n = threadIdx.x; n < 256; n += 32) tile[n] = n * 3 + 1;
    __syncthreads();
    unsigned a[4], b[4];
    load_matrices(a, tile + 8 * threadIdx.x), load_matrices_transposed(b, tile + 8 * threadIdx.x);
    for (int n = 0; n < 4; ++n) out[8 * threadIdx.x + n] = a[n], out[8 * threadIdx.x + 4 + n] = b[n];
}
void run(unsigned* out) { k<<<1, 32>>>(out); }
