//! The stage's table of kernels.

fn main() {
    let halves = |name: &str, sizes: &[&str]| -> Vec<String> {
        let types = ["__half", "__nv_bfloat16"];
        let all = sizes.iter().flat_map(|s| types.map(|t| format!("{name}<{t}, {s}>")));
        all.collect()
    };
    lab_kernel_build::Stage::new()
        // KEY, GROUPS, PLACES
        .kernel("kernels/v2_scores.cu", &halves("vlstm_fw_scores", &["64, 1, 4", "64, 2, 4", "128, 2, 3"]))
        .needs("sm_90a")
        .build();
}
