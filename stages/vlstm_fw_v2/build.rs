//! The stage's table of kernels.

fn main() {
    // KEY, VALUE, L: columns of Q and K and of V that a block has room for, and positions of a tile. In the order of
    // their room.
    let halves = |name: &str, length: usize| -> Vec<String> {
        let types = ["__half", "__nv_bfloat16"];
        let each = |room: usize| types.map(|t| format!("{name}<{t}, {room}, {room}, {length}>"));
        [64, 128].into_iter().flat_map(each).collect()
    };
    lab_kernel_build::Stage::new()
        .kernel("kernels/gates.cu", &["vlstm_fw_gates<false>", "vlstm_fw_gates<true>"])
        .kernel("kernels/v0_mma.cu", &halves("vlstm_fw_mma", 64))
        .needs("sm_80")
        .kernel("kernels/v1_wgmma.cu", &halves("vlstm_fw_wgmma", 128))
        .needs("sm_90a")
        .kernel("kernels/v2_factors.cu", &halves("vlstm_fw_factors", 128))
        .needs("sm_90a")
        .kernel("kernels/v3_ahead.cu", &halves("vlstm_fw_ahead", 128))
        .needs("sm_90a")
        .kernel("kernels/v4_persistent.cu", &halves("vlstm_fw_persistent", 128))
        .needs("sm_90a")
        .build();
}
