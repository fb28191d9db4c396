// One product of each type.
template <class T> __device__ unsigned word(int n, int seed);
template <> __device__ unsigned word<__half>(int n, int seed) {
    __half2 v = __floats2half2_rn((n * 7 + seed) % 17 - 8, (n * 5 + seed) % 13 - 6);
    return *reinterpret_cast<unsigned*>(&v);
}
template <> __device__ unsigned word<__nv_bfloat16>(int n, int seed) {
    __nv_bfloat162 v = __floats2bfloat162_rn((n * 7 + seed) % 17 - 8, (n * 5 + seed) % 13 - 6);
    return *reinterpret_cast<unsigned*>(&v);
}
template <> __device__ unsigned word<float>(int n, int seed) {
    return to_tf32(__float_as_uint(((n * 7 + seed) % 17 - 8) * 1.37f));
}
template <class T> __global__ void k(unsigned* out) {
    int lane = threadIdx.x;
    unsigned a[4];
    float c[4];
    for (int n = 0; n < 4; ++n) a[n] = word<T>(lane, 3 * n), c[n] = lane - 5.0f * n;
    multiply_add<T>(c, a, word<T>(lane, 20), word<T>(lane, 31));
    for (int n = 0; n < 4; ++n) out[4 * lane + n] = __float_as_uint(c[n]);
}
void run(unsigned* out) {
    k<__half><<<1, 32>>>(out);
    k<__nv_bfloat16><<<1, 32>>>(out + 128);
    k<float><<<1, 32>>>(out + 256);
}
