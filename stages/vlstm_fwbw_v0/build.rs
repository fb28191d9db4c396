//! The stage's table of kernels.

fn main() {
    let of = |kernel: &str| {
        let mut all = Vec::new();
        for t in ["float", "__half", "__nv_bfloat16"] {
            // TQ, TKV, DH: as large as 99 KB of shared memory allow.
            for tiles in ["64, 64, 64", "64, 64, 128", "32, 32, 256"] {
                all.push(format!("{kernel}<{t}, {tiles}>"));
            }
        }
        all
    };
    lab_kernel_build::Stage::new()
        .kernel("kernels/grid_sync.cu", &["gate_sums_grid_sync<128>"])
        .kernel("kernels/flags.cu", &["gate_sums_flags<128>"])
        .kernel("kernels/forward.cu", &of("vlstm_forward"))
        .spills(48)
        .kernel("kernels/backward.cu", &[of("vlstm_backward_q"), of("vlstm_backward_kv")].concat())
        .kernel("kernels/forget.cu", &["vlstm_forget<128>"])
        .build();
}
