// Where a document begins, the forget gate is shut, and nothing of the documents before it is left:
//
//     f[b, h, s] = −∞     where tokens[b S + s] is the token that documents begin with
//
// The vLSTM begins anew at such a gate, to the last bit, and gives it no gradient: so there is no way back.
//
// Work split: a thread a row with all its heads, as the gates themselves.
//
// tokens: rows; f: [B, NH, S] in f32.
#include "strip.cuh"

using namespace lab;

__global__ void __launch_bounds__(PASS_THREADS)
    shut_gates(const int* __restrict__ tokens, float* __restrict__ f, int rows, int positions, int heads, int first) {
    int r = blockIdx.x * PASS_THREADS + threadIdx.x;
    if (r >= rows || tokens[r] != first) return;
    for (int h = 0; h < heads; ++h)
        f[(r / positions * 1ll * heads + h) * positions + r % positions] = __int_as_float(0xff800000);
}
