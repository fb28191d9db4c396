// 16 bytes each, past the L1 cache.
__global__ void fill(unsigned* from) { from[threadIdx.x] = 7 * threadIdx.x + 3; }
__global__ void k(unsigned* out, const unsigned* from) {
    uint4 v = load_once(from + 4 * threadIdx.x);
    unsigned* own = out + 4 * threadIdx.x;
    own[0] = v.x, own[1] = v.y, own[2] = v.z, own[3] = v.w;
}
void run(unsigned* out) {
    unsigned* from;
    cudaMalloc(&from, 512);
    fill<<<1, 128>>>(from);
    k<<<1, 32>>>(out, from);
}
