//! The kernels that hand batches of tokens to a language model, and those of decoding beside it.

fn main() {
    let of = |name: &str, types: &[&str]| -> Vec<String> {
        types.iter().map(|t| format!("{name}<{t}>")).collect()
    };
    let floats = ["float", "__half", "__nv_bfloat16"];
    let all = ["float", "__half", "__nv_bfloat16", "signed char"];
    let plain = ["gather_tokens", "record_loss"].map(str::to_owned);
    let batch = [plain.to_vec(), of("begin_streams", &floats)].concat();
    lab_kernel_build::Stage::new()
        .kernel("kernels/batch.cu", &batch)
        .kernel("kernels/draw.cu", &of("draw_tokens", &floats))
        .spills(16) // of f32
        .kernel("kernels/fill.cu", &of("fill_uniform", &all))
        .kernel("kernels/likeliest.cu", &of("likeliest", &floats))
        .build();
}
