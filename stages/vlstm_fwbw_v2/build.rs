//! The stage's table of kernels.

fn main() {
    // KEY, VALUE, L: columns of Q and K and of V that a block has room for, and positions of a tile that a block owns. In
    // the order of their room.
    let halves = |names: &[&str], length: usize| -> Vec<String> {
        let types = ["__half", "__nv_bfloat16"];
        let each = |name: &&str, room: usize| {
            types.map(|t| format!("{name}<{t}, {room}, {room}, {length}>"))
        };
        names.iter().flat_map(|name| [64, 128].map(|room| each(name, room))).flatten().collect()
    };
    let through_n: Vec<String> = ["__half", "__nv_bfloat16"]
        .iter()
        .flat_map(|t| [64, 128].map(|room| format!("vlstm_through_n<{t}, {room}, 64>")))
        .collect();
    lab_kernel_build::Stage::new()
        .kernel(
            "kernels/rows.cu",
            &[
                "vlstm_rows<128, false>",
                "vlstm_rows<128, true>",
                "vlstm_row_sums<128>",
                "vlstm_forget_sums<512>",
            ],
        )
        .kernel("kernels/through_n.cu", &through_n)
        .needs("sm_80")
        .kernel("kernels/v0_mma.cu", &halves(&["vlstm_keys_mma", "vlstm_queries_mma"], 64))
        .needs("sm_80")
        .spills(96)
        .kernel("kernels/v1_wgmma.cu", &halves(&["vlstm_keys_wgmma", "vlstm_queries_wgmma"], 128))
        .needs("sm_90a")
        .spills(48)
        .kernel(
            "kernels/v2_factors.cu",
            &halves(&["vlstm_keys_factors", "vlstm_queries_factors"], 128),
        )
        .needs("sm_90a")
        .spills(48)
        .kernel("kernels/v3_ahead.cu", &halves(&["vlstm_keys_ahead", "vlstm_queries_ahead"], 128))
        .needs("sm_90a")
        .spills(48)
        .kernel("kernels/v4_skip.cu", &halves(&["vlstm_keys_skipping"], 128))
        .needs("sm_90a")
        .spills(56)
        .build();
}
