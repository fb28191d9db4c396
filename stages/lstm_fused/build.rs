//! The stage's table of kernels.

const TYPES: [&str; 4] = ["float", "double", "__half", "__nv_bfloat16"];

/// `name<T, arguments>` for each type.
fn each(name: &str, arguments: &str) -> Vec<String> {
    let comma = if arguments.is_empty() { "" } else { ", " };
    TYPES.iter().map(|t| format!("{name}<{t}{comma}{arguments}>")).collect()
}

/// `name<T, false>` and `name<T, true>` for each type.
fn both(name: &str) -> Vec<String> {
    [each(name, "false"), each(name, "true")].concat()
}

fn main() {
    let cell = [both("lstm_cell"), both("lstm_cell_back"), each("lstm_cell_first", "")];
    let gradients = [
        each("lstm_input_gradient", ""),
        both("lstm_weight_gradient"),
        each("lstm_bias_gradient", ""),
        each("lstm_peephole_gradient", ""),
    ];
    lab_kernel_build::Stage::new()
        .kernel("kernels/v0_cell.cu", &cell.concat())
        .kernel("kernels/gradients.cu", &gradients.concat())
        .build();
}
