//! The stage's table of kernels.

fn main() {
    let types = ["float", "__half", "__nv_bfloat16"];
    let of_types =
        |name: &str| -> Vec<String> { types.iter().map(|t| format!("{name}<{t}>")).collect() };
    // KEY: columns of Q and K that there is room for. Of the last kernel also GROUPS, 64s of columns of V.
    let with_keys = |name: &str, types: &[&str], keys: &[&str]| -> Vec<String> {
        let each =
            |t: &&str| keys.iter().map(move |key| format!("<{t}, {key}>")).collect::<Vec<_>>();
        types.iter().flat_map(each).map(|arguments| format!("{name}{arguments}")).collect()
    };
    let halves = &types[1..];
    lab_kernel_build::Stage::new()
        .kernel("kernels/v0_steps.cu", &with_keys("gdn_fw_steps", &types, &["64", "128", "256"]))
        .kernel("kernels/substitute.cu", &of_types("gdn_fw_substitute"))
        .kernel("kernels/v1_chunks.cu", &of_types("gdn_fw_chunks"))
        .kernel("kernels/blocks.cu", &of_types("gdn_fw_blocks")[1..])
        .needs("sm_80")
        .kernel("kernels/v2_blocks.cu", &with_keys("gdn_fw_tensor", halves, &["64", "128"]))
        .needs("sm_80")
        // The addresses by which the state is loaded and stored.
        .spills(80)
        .kernel(
            "kernels/v3_resident.cu",
            &with_keys("gdn_fw_resident", halves, &["64", "128", "256"]),
        )
        .needs("sm_80")
        // With 256 keys: the state alone is 128 registers.
        .spills(268)
        .kernel("kernels/saving.cu", &with_keys("gdn_fw_saving", halves, &["64", "128", "256"]))
        .needs("sm_80")
        .spills(240)
        .kernel(
            "kernels/v4_fused.cu",
            &[
                with_keys("gdn_fw_fused", halves, &["64, 1", "64, 2", "128, 1", "128, 2"]),
                // PACKED.
                with_keys(
                    "gdn_fw_fused",
                    halves,
                    &["64, 1, true", "64, 2, true", "128, 1, true", "128, 2, true"],
                ),
            ]
            .concat(),
        )
        .needs("sm_90a")
        .build();
}
