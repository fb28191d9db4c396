//! The stage's table of kernels.

const TYPES: [&str; 3] = ["float", "__half", "__nv_bfloat16"];

/// `name<T>` for each type.
fn each(names: &[&str]) -> Vec<String> {
    names.iter().flat_map(|name| TYPES.map(|t| format!("{name}<{t}>"))).collect()
}

fn main() {
    lab_kernel_build::Stage::new()
        .kernel(
            "kernels/v0_cell.cu",
            &each(&["slstm_cell", "slstm_cell_back", "slstm_cell_first"]),
        )
        .kernel("kernels/gradients.cu", &each(&["r_gradient", "b_gradient"]))
        .build();
}
