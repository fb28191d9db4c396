// A flag between blocks, and a counter that begins again.
__global__ void k(unsigned* out, unsigned* box, unsigned* flag) {
    if (threadIdx.x == 0 && blockIdx.x == 0) box[0] = 41, store_release(flag, 1u);
    if (threadIdx.x == 0 && blockIdx.x == 1) {
        while (load_acquire(flag) != 1u) {}
        out[0] = box[0];
    }
    if (threadIdx.x < 5) increment_release(flag + 1, 6);
}
__global__ void after(unsigned* out, unsigned* flag) { out[1] = flag[1]; }
void run(unsigned* out) {
    unsigned* more;
    cudaMalloc(&more, 64), cudaMemset(more, 0, 64);
    k<<<2, 32>>>(out, more, more + 1);
    after<<<1, 1>>>(out, more + 1);
}
