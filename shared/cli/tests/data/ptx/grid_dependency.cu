// A grid that waits for the one before.
__global__ void first(unsigned* out) {
    griddep_launch_dependents();
    out[threadIdx.x] = threadIdx.x + 5;
}
__global__ void second(unsigned* out) {
    griddep_wait();
    out[64 + threadIdx.x] = out[threadIdx.x] * 2;
}
void run(unsigned* out) {
    first<<<1, 32>>>(out);
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(1), config.blockDim = dim3(32);
    config.attrs = &attribute, config.numAttrs = 1;
    cudaLaunchKernelEx(&config, second, out);
}
