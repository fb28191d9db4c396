// What is asked for ahead stays as it is.
__global__ void k(unsigned* out) {
    out[threadIdx.x] = 3 * threadIdx.x + 1;
    __syncthreads();  // all of it is written
    if (threadIdx.x == 0) prefetch_bulk(out, 512);
    __syncthreads();  // and looked at, if it is
    out[256 + threadIdx.x] = out[threadIdx.x];
}
void run(unsigned* out) { k<<<1, 256>>>(out); }
