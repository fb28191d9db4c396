// The gradient by R as gradients.cu has it, on tensor cores: each gate's and head's is a product daᵀ h over all rows.
//
// Work split: a block has a tile of dr, 64 x 64, of one gate and head, and goes along the whole sum (lab/tile_product.cuh): the
// same bits at every run. First come the rows whose h is h0, then all others. A tile that is wider than the head multiplies
// columns of the next one, too, and does not store them.
//
// Tensors as gradients.cu has them. A grid of DH / 64 x DH / 64 x 4 NH blocks, rounded up. f16 and bf16 alone; PACK is 8
// where DH is a multiple of that, else 1.
#include "lab/tile_product.cuh"

using namespace lab;

template <class T, int PACK> constexpr int r_gradient_tiles_shared = TileProduct<T, PACK, true>::BYTES;

template <class T, int PACK>
__global__ void __launch_bounds__(128, 2)
    r_gradient_tiles(const T* __restrict__ dwx, const T* __restrict__ y, const T* __restrict__ h0, T* __restrict__ dr,
                     int rows, int B, int NH, int DH) {
    DYNAMIC_SHARED(T, stages);
    int H = NH * DH, k0 = blockIdx.x * TILE, j0 = blockIdx.y * TILE, gate_head = blockIdx.z, later = rows - B;
    int column = gate_head * DH + j0, of_h = gate_head % NH * DH + k0;
    TileProduct<T, PACK, true> product;
    auto add = [&](const T* da, const T* h, int count) {
        Matrix<const T> A{da, count, 4 * H}, X{h, count, H};
        product.run(stages, A, X, column, of_h, 0, (count + TILE - 1) / TILE);
    };
    add(dwx, h0, B);
    __syncthreads();  // the stages of the first rows are read: those of the others take their places
    add(dwx + B * 4ll * H, y, later);
    product.each_pair([&](int j, int k, const float* two) {
        T* to = dr + (gate_head * 1ll * DH + j0 + j) * DH + k0 + k;
        if (j0 + j >= DH) return;
        if (k0 + k < DH) to[0] = from_math<T>(two[0]);
        if (k0 + k + 1 < DH) to[1] = from_math<T>(two[1]);
    });
}
