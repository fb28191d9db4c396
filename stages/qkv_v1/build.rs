//! The stage's table of kernels.

fn main() {
    let mut all = Vec::new();
    for t in ["float", "__half", "__nv_bfloat16"] {
        // TQ, TKV, DH: as large as 99 KB of shared memory allow.
        for tiles in ["64, 64, 64", "64, 64, 128", "32, 32, 256"] {
            for pack in [if t == "float" { 4 } else { 8 }, 1] {
                all.push(format!("qkv_block_tile<{t}, {tiles}, {pack}>"));
            }
        }
    }
    lab_kernel_build::Stage::new().kernel("kernels/block_tile.cu", &all).build();
}
