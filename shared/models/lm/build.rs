//! The kernels that hand batches of tokens to a language model.

fn main() {
    lab_kernel_build::Stage::new()
        .kernel("kernels/batch.cu", &["gather_tokens", "record_loss"])
        .build();
}
