//! The stage's table of kernels.

#[path = "src/residences.rs"]
mod residences;

use residences::{NORM, SEQUENCE, SPREAD};

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

/// A kernel that keeps weights, for each size of its table: one of f32 and halves, one of f64.
fn kept<const N: usize>(name: &str, [singles, doubles]: [&[[usize; N]]; 2]) -> Vec<String> {
    let mut all = Vec::new();
    for t in TYPES {
        for sizes in if t == "double" { doubles } else { singles } {
            let sizes = sizes.map(|size| size.to_string()).join(", ");
            all.push(format!("{name}<{t}, {sizes}>"));
        }
    }
    all
}

/// What is read from the network, with a warp a row or four.
fn heads() -> Vec<String> {
    let mut all = Vec::new();
    for t in TYPES {
        let numbers = if t == "double" { "double" } else { "float" };
        for data in [format!("{numbers}, false"), "int, true".into()] {
            all.extend([32, 128].map(|threads| format!("head_loss<{t}, {data}, {threads}>")));
        }
    }
    all
}

/// The optimizer's rules, by their numbers in `lab/optimizer.cuh`.
fn updates() -> Vec<String> {
    let rules = ["SGD", "ADAM", "ADAMW"].map(|rule| each("update", rule));
    [each("gradient_squares", ""), rules.concat()].concat()
}

fn main() {
    let cell = [both("lstm_cell"), both("lstm_cell_back"), each("lstm_cell_first", "")];
    let norm = [both("norm_cell"), both("norm_cell_back")];
    let gru = ["gru_cell", "gru_cell_back", "gru_cell_first"].map(|name| each(name, ""));
    let projection = ["projection", "gates_again"].map(|name| each(name, ""));
    let by_x = ["input_gradient", "narrow_input_gradient"].map(|name| each(name, ""));
    let vectors = ["peephole_gradient", "norm_gradient"].map(|name| each(name, ""));
    let spread = ["lstm_spread", "lstm_spread_back"].map(|name| kept(name, SPREAD));
    println!("cargo::rerun-if-changed=src/residences.rs");
    lab_kernel_build::Stage::new()
        .kernel("kernels/v0_cell.cu", &cell.concat())
        .kernel("kernels/v1_sequence.cu", &kept("lstm_sequence", SEQUENCE))
        .kernel("kernels/v1_sequence_back.cu", &kept("lstm_sequence_back", SEQUENCE))
        .kernel("kernels/v1_norm.cu", &kept("norm_sequence", NORM))
        .kernel("kernels/v1_norm_back.cu", &kept("norm_sequence_back", NORM))
        .kernel("kernels/v2_spread.cu", &spread.concat())
        .kernel("kernels/norm_cell.cu", &norm.concat())
        .kernel("kernels/gru_cell.cu", &gru.concat())
        .kernel("kernels/projection.cu", &projection.concat())
        .kernel("kernels/input_gradient.cu", &by_x.concat())
        .kernel("kernels/parameter_gradient.cu", &each("parameter_gradient", ""))
        .kernel("kernels/vector_gradient.cu", &vectors.concat())
        .kernel("kernels/gather.cu", &[each("gather_series", ""), each("gather_text", "")].concat())
        .kernel("kernels/head.cu", &heads())
        .kernel("kernels/dropout.cu", &each("dropout", ""))
        .kernel("kernels/update.cu", &updates())
        .build();
}
