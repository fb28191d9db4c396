//! The stage's table of kernels.

fn main() {
    let each = |name: &str| ["float", "double"].map(|t| format!("{name}<{t}>"));
    let plain = ["forward", "backward", "update"].map(each);
    lab_kernel_build::Stage::new().kernel("kernels/v0_sample.cu", &plain.concat()).build();
}
