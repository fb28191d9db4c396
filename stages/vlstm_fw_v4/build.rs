//! The stage's table of kernels.

fn main() {
    let halves = |name: &str, sizes: &[&str]| -> Vec<String> {
        let types = ["__half", "__nv_bfloat16"];
        sizes.iter().flat_map(|s| types.map(|t| format!("{name}<{t}, {s}>"))).collect()
    };
    let halves_of = |name: &str| {
        let types = ["__half", "__nv_bfloat16"];
        types.map(|t| format!("{name}<{t}>")).to_vec()
    };
    // KEY, GROUPS, PLACES: keys and 64s of values that a block has room for, and chunks. In the order of their room.
    let places = ["64, 1, 4", "64, 2, 4", "128, 2, 3"];
    let one_place = ["64, 1", "64, 2", "128, 2"];
    let segments =
        [halves("vlstm_fw_parts", &places), halves("vlstm_fw_segments", &places)].concat();
    // Gates and normaliser: the vLSTM's by default.
    let decays = ["64, 1, 4", "64, 2, 4", "128, 1, 4", "128, 2, 3"];
    // Of heads that share keys two at once.
    let of_gates = |gates: &str| {
        let one = decays.map(|places| format!("{places}, {gates}, None"));
        let two = ["64, 2, 4", "128, 2, 3"].map(|places| format!("{places}, {gates}, None, 2"));
        [one.to_vec(), two.to_vec()].concat()
    };
    let decays = [of_gates("Decay"), of_gates("Sigmoid")].concat();
    let decays: Vec<&str> = decays.iter().map(String::as_str).collect();
    let roles = [halves("vlstm_fw_roles", &places), halves("vlstm_fw_roles", &decays)].concat();
    lab_kernel_build::Stage::new()
        .kernel("kernels/v0_steps.cu", &halves("vlstm_fw_steps", &one_place))
        .needs("sm_90a")
        .kernel("kernels/v1_roles.cu", &roles)
        .needs("sm_90a")
        .spills(16)
        .kernel("kernels/v2_segments.cu", &segments)
        .needs("sm_90a")
        .spills(40) // with the parts of the same place in one program; alone 32
        .kernel(
            "kernels/v4_wide.cu",
            &[
                halves_of("vlstm_fw_gates"),
                halves("vlstm_fw_wide", &["256, 2, false", "256, 2, true"]),
            ]
            .concat(),
        )
        .needs("sm_90a")
        .spills(64)
        .build();
}
