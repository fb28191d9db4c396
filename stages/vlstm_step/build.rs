//! The stage's table of kernels.

/// Of the tokens and of the state.
const TYPES: [&str; 4] =
    ["float, float", "__half, float", "__nv_bfloat16, float", "__nv_bfloat16, __nv_bfloat16"];

fn main() {
    let of = |name: &str, rest: &[&str]| -> Vec<String> {
        let all = rest.iter().flat_map(|rest| TYPES.map(|t| format!("{name}<{t}, {rest}>")));
        all.collect()
    };
    // The vLSTM's gates and normaliser, which are the default, and its relatives'.
    let lanes = ["256, 4", "256, 8", "256, 16", "256, 32"];
    let relatives = ["Decay, None", "Sigmoid, None", "Sigmoid, One"];
    let relatives = relatives.map(|relative| lanes.map(|lanes| format!("{lanes}, {relative}")));
    let relatives: Vec<String> = relatives.into_iter().flatten().collect();
    let slices: Vec<&str> = lanes.into_iter().chain(relatives.iter().map(String::as_str)).collect();
    lab_kernel_build::Stage::new()
        .kernel("kernels/v0_simple.cu", &of("vlstm_step_simple", &["256"]))
        .kernel("kernels/v1_packs.cu", &of("vlstm_step_packs", &["256"]))
        // The last: strips of a slice; of the ring, its places.
        .kernel("kernels/v2_slices.cu", &of("vlstm_step_slices", &slices))
        .spills(48) // without a normaliser, zeros of a strip of bf16, which few launches read; 0 of the vLSTM's
        .kernel("kernels/v3_ring.cu", &of("vlstm_step_ring", &["256, 3"]))
        .needs("sm_90")
        .build();
}
