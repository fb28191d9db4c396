// In from device memory, over to the other block, out again.
__global__ void k(unsigned* out, unsigned* in) {
    __shared__ __align__(16) unsigned box[2][64];
    __shared__ Mbarrier ready;
    int rank = blockIdx.x;
    if (threadIdx.x == 0) mbarrier_init(&ready, 1), mbarrier_fence_init();
    cooperative_groups::this_cluster().sync();
    if (threadIdx.x == 0) {
        mbarrier_arrive_expect(&ready, 256);
        bulk_load(box[0], in + 64 * rank, 256, &ready);
    }
    mbarrier_wait(&ready, 0);
    cooperative_groups::this_cluster().sync();
    if (threadIdx.x == 0) {
        mbarrier_arrive_expect(&ready, 128);
        bulk_send(address_in_block(box[1], 1 - rank), box[0] + 16, 128,
                  address_in_block(&ready, 1 - rank));
    }
    mbarrier_wait_cluster(&ready, 1);
    cooperative_groups::this_cluster().sync();
    box[0][threadIdx.x] = box[1][threadIdx.x] + 1;
    fence_proxy_async_shared();
    __syncthreads();
    if (threadIdx.x == 0) {
        bulk_store(out + 128 * rank, box[0], 128), bulk_commit();
        bulk_store(out + 128 * rank + 64, box[1], 64), bulk_commit();
        bulk_wait_read<1>(), box[0][0] = 77;
        bulk_wait<0>(), out[512 + 2 * rank] = out[128 * rank] + out[128 * rank + 64];
        bulk_wait_read<0>(), box[1][0] = 78;
    }
    if (rank == 0 && threadIdx.x == 1) out[520] = 1, fence_proxy_async();
    cooperative_groups::this_cluster().sync();
}
void run(unsigned* out) { launch_pair(k, out, numbers<unsigned>()); }
