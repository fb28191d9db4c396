//! The kernels that check the device layer.

fn main() {
    lab_kernel_build::Stage::new()
        .kernel(
            "kernels/device.cu",
            &["fill<float>", "fill<__half>", "add_to<float>", "weigh", "reverse"],
        )
        .globals(&["weights", "offset"])
        .build();
}
