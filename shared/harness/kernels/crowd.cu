// Blocks that keep their multiprocessors until they are told to go, as those of a collective do that waits for another GPU.
//
// stay: 1 until they are to go; unasked: how many have gone by themselves, after so many cycles. Dynamic shared memory is there to fill
// a multiprocessor, and nobody uses it.

__global__ void __launch_bounds__(1024) crowd(int* stay, int* unasked, long long cycles) {
    if (threadIdx.x == 0) {
        long long begin = clock64();
        bool told = false;
        // An atomic operation is done where another queue's fill of `stay` is seen.
        while (!(told = atomicAdd(stay, 0) == 0) && clock64() - begin < cycles) __nanosleep(1000);
        if (!told) atomicAdd(unasked, 1);
    }
    __syncthreads();  // the block holds what it has until its first thread may go
}
