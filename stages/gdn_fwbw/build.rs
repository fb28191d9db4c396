//! The stage's table of kernels.

fn main() {
    let of_types =
        |name: &str| ["float", "__half", "__nv_bfloat16"].map(|t| format!("{name}<{t}>"));
    lab_kernel_build::Stage::new()
        .kernel("kernels/back.cu", &of_types("gdn_fwbw_back"))
        .kernel("kernels/chunks.cu", &of_types("gdn_fwbw_chunks"))
        .build();
}
