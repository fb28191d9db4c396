//! The stage's table of kernels.

fn main() {
    let mut all = Vec::new();
    for t in ["float", "__half", "__nv_bfloat16"] {
        // TQ, TKV, DH: as large as 99 KB of shared memory allow.
        for tiles in ["64, 64, 64", "64, 64, 128", "32, 32, 256"] {
            all.push(format!("vlstm_fw<{t}, {tiles}>"));
        }
    }
    lab_kernel_build::Stage::new().kernel("kernels/online.cu", &all).build();
}
