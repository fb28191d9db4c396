//! The stage's table of kernels.

fn main() {
    let types = ["__half", "__nv_bfloat16"];
    // L, the positions of a chunk.
    let chunked = |name: &str| -> Vec<String> {
        types.iter().flat_map(|t| [64, 128].map(|l| format!("{name}<{t}, {l}>"))).collect()
    };
    // And panels of 64 columns of Q: shared memory has room for eight beside a short chunk alone.
    let outputs: Vec<String> = types
        .iter()
        .flat_map(|t| ["64, 4", "64, 8", "128, 4"].map(|l| format!("chunk_outputs<{t}, {l}>")))
        .collect();
    lab_kernel_build::Stage::new()
        .kernel("kernels/gates.cu", &[64, 128].map(|l| format!("chunk_gates<{l}>")))
        .kernel("kernels/parts.cu", &chunked("chunk_parts"))
        .needs("sm_80")
        .kernel("kernels/walk.cu", &types.map(|t| format!("walk_chunks<{t}>")))
        .kernel("kernels/outputs.cu", &outputs)
        .needs("sm_80")
        .build();
}
