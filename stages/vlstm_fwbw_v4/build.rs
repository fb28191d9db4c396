//! The stage's table of kernels.

fn main() {
    let halves = |name: &str, sizes: &[&str]| -> Vec<String> {
        let types = ["__half", "__nv_bfloat16"];
        sizes.iter().flat_map(|s| types.map(|t| format!("{name}<{t}, {s}>"))).collect()
    };
    let gates = [
        vec!["vlstm_gate_sums<128>".to_owned()],
        halves("vlstm_gate_weights", &["128"]),
        halves("vlstm_normaliser_gradient", &["128"]),
    ];
    // DHQK, DHHV. In the order of their room.
    let gradients = halves("vlstm_gradients", &["64, 64", "128, 128", "128, 256"]);
    lab_kernel_build::Stage::new()
        .kernel("kernels/gates.cu", &gates.concat())
        .needs("sm_90a")
        .kernel("kernels/gradients.cu", &gradients)
        .needs("sm_90a")
        .kernel("kernels/parts.cu", &halves("vlstm_gradient_parts", &["64", "128"]))
        .needs("sm_90a")
        .kernel("kernels/forget.cu", &["vlstm_anchored_forget<128>"])
        .needs("sm_90a")
        .build();
}
