// What a block finds in shared memory that nobody has written.
__global__ void poison(float* fixed, float* dynamic) {
    __shared__ float uninitialised[64];
    fixed[threadIdx.x] = uninitialised[threadIdx.x];
    dynamic[threadIdx.x] = static_cast<float*>(emu_dynamic_shared())[threadIdx.x];
}

// out: of two blocks, the lower 18 bits of a generic address of dynamic shared memory, and its place in the window.
__global__ void places(unsigned* out) {
    __shared__ float fixed[5];
    fixed[threadIdx.x % 5] = 0;
    char* at = static_cast<char*>(emu_dynamic_shared()) + 48;
    out[2 * blockIdx.x] = unsigned(reinterpret_cast<unsigned long long>(at) & 0x3FFFF);
    out[2 * blockIdx.x + 1] = emu_shared_number(at);
}
