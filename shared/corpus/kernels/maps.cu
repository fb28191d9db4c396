// Boxes of tensors by whatever tensor map, for each byte of what they leave to be compared: src/maps.rs.
#include "lab/ptx/dynamic_shared.cuh"
#include "lab/ptx/tensor_copy.cuh"

using namespace lab;

// Words of shared memory.
constexpr int ROOM = 8192;

// The box at these coordinates, in what of them the rank has.
template <int RANK> struct At {
    int c[RANK];
    __device__ At(int a, int b, int d, int e, int f) {
        int all[] = {a, b, d, e, f};
        for (int i = 0; i < RANK; ++i) c[i] = all[i];
    }
};

// out [ROOM] = shared memory, all of it 0xEE, after a box was loaded to its byte `tile`, which has `bytes`.
template <int RANK> __global__ void box_loaded(const __grid_constant__ TensorMap map, int c0, int c1, int c2, int c3,
                                               int c4, int tile, unsigned bytes, unsigned* out) {
    DYNAMIC_TILES(unsigned, memory);
    __shared__ Mbarrier full;
    for (int i = threadIdx.x; i < ROOM; i += blockDim.x) memory[i] = 0xEEEEEEEEu;
    fence_proxy_async();
    if (threadIdx.x == 0) {
        mbarrier_init(&full, 1);
        mbarrier_fence_init();
    }
    __syncthreads();  // the memory is written and fenced, the barrier is there
    if (threadIdx.x == 0) {
        mbarrier_arrive_expect(&full, bytes);
        At<RANK> at(c0, c1, c2, c3, c4);
        tensor_load(memory + tile / 4, map, at.c, &full);
    }
    mbarrier_wait(&full, 0);
    for (int i = threadIdx.x; i < ROOM; i += blockDim.x) out[i] = memory[i];
}
// The box is stored from byte `tile` of shared memory, which is as `from` [ROOM].
template <int RANK> __global__ void box_stored(const __grid_constant__ TensorMap map, int c0, int c1, int c2, int c3,
                                               int c4, int tile, const unsigned* from) {
    DYNAMIC_TILES(unsigned, memory);
    for (int i = threadIdx.x; i < ROOM; i += blockDim.x) memory[i] = from[i];
    fence_proxy_async();
    __syncthreads();  // all of the memory is written, and fenced
    if (threadIdx.x == 0) {
        At<RANK> at(c0, c1, c2, c3, c4);
        tensor_store(map, at.c, memory + tile / 4);
        bulk_commit();
        bulk_wait<0>();
    }
}
