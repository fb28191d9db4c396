// A block arrives at the barrier of another, behind what it has written.
__global__ void k(unsigned* out, unsigned* in) {
    __shared__ Mbarrier ready;
    int rank = blockIdx.x;
    if (threadIdx.x == 0) mbarrier_init(&ready, 32), mbarrier_fence_init();
    cooperative_groups::this_cluster().sync();
    if (rank == 1) out[threadIdx.x] = in[threadIdx.x], mbarrier_arrive_cluster(address_in_block(&ready, 0));
    else mbarrier_wait_cluster(&ready, 0), out[32 + threadIdx.x] = out[31 - threadIdx.x];
    cooperative_groups::this_cluster().sync();
    if (threadIdx.x == 0) mbarrier_invalidate(&ready);
}
void run(unsigned* out) { launch_pair(k, out, numbers<unsigned>()); }
