// Reciprocals of both signs.
__global__ void k(unsigned* out) {
    float x = (int(threadIdx.x) - 128.5f) * 0.37f;
    out[threadIdx.x] = __float_as_uint(quick_reciprocal(x));
}
void run(unsigned* out) { k<<<1, 256>>>(out); }
