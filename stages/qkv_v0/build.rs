//! The stage's table of kernels.

fn main() {
    let mut all = Vec::new();
    for t in ["float", "__half", "__nv_bfloat16"] {
        // TQ, TKV, DH, THREADS: rows of half the width come twice as many to a tile.
        for tiles in ["16, 16, 128, 64", "8, 8, 256, 64"] {
            all.push(format!("qkv_grid_tile<{t}, {tiles}>"));
        }
    }
    lab_kernel_build::Stage::new().kernel("kernels/grid_tile.cu", &all).build();
}
