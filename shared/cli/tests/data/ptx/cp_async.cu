// Copies of each size, some of zeros, in two groups.
template <int BYTES> __global__ void k(unsigned* out, const unsigned* in) {
    __shared__ __align__(16) unsigned tile[2][128];
    int words = BYTES / 4, at = words * threadIdx.x;
    for (int n = 0; n < words; ++n) tile[0][at + n] = tile[1][at + n] = 7;
    async_copy<BYTES>(&tile[0][at], in + at);
    async_commit();
    async_copy_or_zero<BYTES>(&tile[1][at], in + at + 1 * words, threadIdx.x % 3 != 0);
    async_commit();
    async_wait<1>();
    for (int n = 0; n < words; ++n) out[at + n] = tile[0][at + n];
    async_wait<0>();
    for (int n = 0; n < words; ++n) out[128 + at + n] = tile[1][at + n];
}
void run(unsigned* out) {
    unsigned* in = numbers<unsigned>();
    k<4><<<1, 32>>>(out, in);
    k<8><<<1, 32>>>(out + 256, in);
    k<16><<<1, 32>>>(out + 512, in);
}
