// Powers of two from -47 to 47.
__global__ void k(unsigned* out) {
    float x = (int(threadIdx.x) - 128) * 0.37f;
    out[threadIdx.x] = __float_as_uint(power_of_two(x));
}
void run(unsigned* out) { k<<<1, 256>>>(out); }
