//! The stage's table of kernels.

fn main() {
    let halves = |name: &str, sizes: &[&str]| -> Vec<String> {
        let types = ["__half", "__nv_bfloat16"];
        sizes.iter().flat_map(|s| types.map(|t| format!("{name}<{t}, {s}>"))).collect()
    };
    let gates = [
        vec!["vlstm_gate_sums<128>".to_owned()],
        halves("vlstm_gate_weights", &["128, 1"]),
        halves("vlstm_gate_weights_twice", &["128"]),
        halves("vlstm_normaliser_gradient", &["128"]),
    ];
    // DHQK, DHHV. In the order of their room.
    let through = |name: &str, sizes: &[&str]| -> Vec<String> {
        let both = |s: &&str| ["false", "true"].map(|n| format!("{s}, {n}"));
        let sizes: Vec<_> = sizes.iter().flat_map(both).collect();
        halves(name, &sizes.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let rooms = ["64, 64", "128, 128", "128, 256"];
    let linear = ["64, 64", "128, 64", "128, 128", "128, 256"];
    let linear = linear.map(|room| format!("{room}, false, None"));
    let linear: Vec<&str> = linear.iter().map(String::as_str).collect();
    let gradients =
        [through("vlstm_gradients", &rooms), halves("vlstm_gradients", &linear)].concat();
    lab_kernel_build::Stage::new()
        .kernel("kernels/gates.cu", &gates.concat())
        .needs("sm_90a")
        .kernel("kernels/gradients.cu", &gradients)
        .needs("sm_90a")
        .spills(172) // of those through n; in bf16 136
        .kernel("kernels/parts.cu", &through("vlstm_gradient_parts", &["64", "128"]))
        .needs("sm_90a")
        .kernel("kernels/wide_states.cu", &halves("vlstm_wide_states", &["256, 2"]))
        .needs("sm_90a")
        .spills(136) // around the walk, of what begins and ends a state
        .kernel("kernels/wide_normaliser.cu", &halves("vlstm_wide_normaliser", &["256"]))
        .needs("sm_90a")
        .kernel("kernels/wide_gradients.cu", &halves("vlstm_wide_gradients", &["false", "true"]))
        .needs("sm_90a")
        .kernel(
            "kernels/forget.cu",
            &[
                "vlstm_anchored_forget<128>",
                "vlstm_anchored_forget<128, Decay>",
                "vlstm_anchored_forget<128, Sigmoid>",
            ],
        )
        .needs("sm_90a")
        .kernel("kernels/sum_heads.cu", &halves("vlstm_sum_heads", &["256"]))
        .needs("sm_90a")
        .build();
}
