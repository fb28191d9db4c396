//! The stage's table of kernels.

fn main() {
    let types = ["__half", "__nv_bfloat16"];
    // L, the positions of a chunk.
    let chunked = |name: &str| -> Vec<String> {
        types.iter().flat_map(|t| [64, 128].map(|l| format!("{name}<{t}, {l}>"))).collect()
    };
    lab_kernel_build::Stage::new()
        .kernel("kernels/rows.cu", &chunked("chunk_rows"))
        .needs("sm_80")
        .kernel("kernels/walk.cu", &types.map(|t| format!("walk_gradients<{t}>")))
        .kernel("kernels/carry.cu", &types.map(|t| format!("carry_gradients<{t}, 128>")))
        .needs("sm_80")
        .kernel("kernels/gradients.cu", &chunked("chunk_gradients"))
        .needs("sm_80")
        .kernel("kernels/forget.cu", &[64, 128].map(|l| format!("chunk_forget<{l}>")))
        .build();
}
