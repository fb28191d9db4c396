// Three phases, each waited for by its parity.
__global__ void k(unsigned* out) {
    __shared__ Mbarrier ready;
    __shared__ unsigned box[64];
    if (threadIdx.x == 0) mbarrier_init(&ready, 32), mbarrier_fence_init();
    __syncthreads();
    for (int phase = 0; phase < 3; ++phase) {
        if (threadIdx.x < 32) box[threadIdx.x] = threadIdx.x * 3 + phase, mbarrier_arrive(&ready);
        mbarrier_wait(&ready, phase % 2);
        out[64 * phase + threadIdx.x] = box[threadIdx.x % 32];
        __syncthreads();
    }
    out[256 + threadIdx.x] = mbarrier_try_wait(&ready, 0);
    __syncthreads();
    if (threadIdx.x == 0) mbarrier_invalidate(&ready);
}
void run(unsigned* out) { k<<<1, 64>>>(out); }
