// Registers change hands, and one lane speaks for its warp.
__global__ void __launch_bounds__(384, 1) k(unsigned* out) {
    if (threadIdx.x < 128) registers_decrease<40>();
    else registers_increase<232>();
    unsigned own = elect_one();
    out[threadIdx.x] = own;
}
void run(unsigned* out) { k<<<1, 384>>>(out); }
