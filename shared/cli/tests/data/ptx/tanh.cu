// Tangents, flat ends included.
__global__ void k(unsigned* out) {
    float x = (int(threadIdx.x) - 128) * 0.05f;
    out[threadIdx.x] = __float_as_uint(rough_tangent(x));
}
void run(unsigned* out) { k<<<1, 256>>>(out); }
