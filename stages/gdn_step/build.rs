//! The stage's table of kernels.

fn main() {
    // The run's type, and that of the state.
    let types =
        ["float, float", "__half, float", "__nv_bfloat16, float", "__nv_bfloat16, __nv_bfloat16"];
    let once = |keys| types.map(|t| format!("gdn_step_once<{t}, {keys}>"));
    // The most keys, threads beside each other in a row.
    let runs = |keys| types.map(|t| format!("gdn_step_runs<{t}, {keys}, 8>"));
    lab_kernel_build::Stage::new()
        .kernel("kernels/v0_simple.cu", &types.map(|t| format!("gdn_step_simple<{t}, 128>")))
        .kernel("kernels/v1_once.cu", &[128, 256].map(once).concat())
        .kernel("kernels/v2_runs.cu", &[128, 256].map(runs).concat())
        .build();
}
