// Launches that overlap: what the device layer's tests make chains of.
#include "lab/ptx/grid_dependency.cuh"

// out = 2 x + weights. The next grid may begin at once, and this one takes its time before it writes.
__global__ void double_and_add(const float* weights, const float* x, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    lab::griddep_launch_dependents();
    float weight = i < n ? weights[i] : 0.f;  // nobody writes weights: before the wait
    lab::griddep_wait();                      // x is there, and nobody reads out any more
    __nanosleep(500);
    if (i < n) out[i] = 2.f * x[i] + weight;
}

// BUG: the same, and nobody waits.
__global__ void double_and_add_at_once(const float* weights, const float* x, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    lab::griddep_launch_dependents();
    if (i < n) out[i] = 2.f * x[i] + weights[i];
}
