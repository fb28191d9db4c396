//! The stage's table of kernels.

fn main() {
    let of_types =
        |name: &str| ["float", "__half", "__nv_bfloat16"].map(|t| format!("{name}<{t}>"));
    // KEY: columns of Q and K that there is room for.
    let on_tensor_cores = |name: &str| {
        ["__half", "__nv_bfloat16"]
            .map(|t| [64, 128, 256].map(|key| format!("{name}<{t}, {key}>")))
            .concat()
    };
    lab_kernel_build::Stage::new()
        .kernel("kernels/back.cu", &of_types("gdn_fwbw_back"))
        .kernel("kernels/chunks.cu", &of_types("gdn_fwbw_chunks"))
        .kernel("kernels/tensor_back.cu", &on_tensor_cores("gdn_fwbw_tensor_back"))
        .needs("sm_80")
        // With 256 keys: the state alone is 128 registers.
        .spills(540)
        .kernel("kernels/tensor_chunks.cu", &on_tensor_cores("gdn_fwbw_tensor_chunks"))
        .needs("sm_80")
        // The number of a turn, over the products of one, with 128 keys.
        .spills(8)
        .build();
}
