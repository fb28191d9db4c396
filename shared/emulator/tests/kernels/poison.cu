// What a block finds in shared memory that nobody has written.
__global__ void poison(float* fixed, float* dynamic) {
    __shared__ float uninitialised[64];
    fixed[threadIdx.x] = uninitialised[threadIdx.x];
    dynamic[threadIdx.x] = static_cast<float*>(emu_dynamic_shared())[threadIdx.x];
}
