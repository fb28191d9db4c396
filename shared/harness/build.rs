//! The kernels that check the device layer.

fn main() {
    lab_kernel_build::Stage::new()
        .kernel(
            "kernels/device.cu",
            &[
                "fill<float>",
                "fill<__half>",
                "add_to<float>",
                "weigh",
                "reverse",
                "grid_syncs",
                "apply",
                "look_up",
            ],
        )
        .globals(&["weights", "offset"])
        .kernel("kernels/overlap.cu", &["double_and_add", "double_and_add_at_once"])
        .kernel("kernels/crowd.cu", &["crowd"])
        .kernel("kernels/boxes.cu", &["move_box"])
        .needs("sm_90")
        // The emulator's own test kernels: see agreement.rs.
        .kernel(
            "../emulator/tests/kernels/features.cu",
            &[
                "coordinates",
                "block_votes",
                "early_exit",
                "warp_sum<float>",
                "warp_sum<__half>",
                "divergent_halves",
                "atomics",
                "half_types",
                "half_back",
                "half_arithmetic<__half>",
                "half_arithmetic<__nv_bfloat16>",
                "grid_rounds",
                "flag_chain",
                "tiles",
                "match_and_reduce",
                "integer_atomics",
                "vectors_and_maths",
                "half_pairs",
            ],
        )
        .kernel(
            "../emulator/tests/kernels/groups.cu",
            &[
                "handed<NONE>",
                "budget<FITS>",
                "stored<1, 0>",
                "stored<2, 0>",
                "stored<4, 0>",
                "stored<4, 1>",
            ],
        )
        .needs("sm_90a")
        .build();
}
