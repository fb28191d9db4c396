// A word and two words to the other block.
__global__ void k(unsigned* out, unsigned* in) {
    __shared__ __align__(16) unsigned box[32];
    __shared__ __align__(16) unsigned long long wide[32];
    __shared__ Mbarrier ready;
    int rank = blockIdx.x, lane = threadIdx.x;
    if (lane == 0) {
        mbarrier_init(&ready, 1), mbarrier_fence_init();
        mbarrier_arrive_expect(&ready, 32 * 12);
    }
    cooperative_groups::this_cluster().sync();
    ClusterAddress barrier = address_in_block(&ready, 1 - rank);
    store_async(address_in_block(box + lane, 1 - rank), 3 * lane + 100u * rank, barrier);
    store_async(address_in_block(wide + lane, 1 - rank), 0x100000001ull * lane + rank, barrier);
    mbarrier_wait_cluster(&ready, 0);
    out[128 * rank + lane] = box[lane];
    out[128 * rank + 32 + lane] = unsigned(wide[lane] >> 32);
    out[128 * rank + 64 + lane] = unsigned(wide[lane]);
    cooperative_groups::this_cluster().sync();
}
void run(unsigned* out) { launch_pair(k, out, numbers<unsigned>()); }
