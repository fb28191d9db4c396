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

/// The kernels that keep weights: of HT units and ROWS rows, KEPT weights a thread in registers and
/// IN_SHARED in shared memory. `src/sequence.rs` has the same table, and says why.
fn sequences() -> Vec<String> {
    let singles = [
        "32, 1, 32, 0",
        "32, 4, 32, 0",
        "64, 1, 64, 0",
        "64, 4, 64, 0",
        "128, 1, 84, 44",
        "128, 4, 36, 36",
        "256, 1, 24, 20",
        "256, 2, 8, 20",
    ];
    let doubles = [
        "32, 1, 32, 0",
        "32, 4, 32, 0",
        "64, 1, 64, 0",
        "64, 4, 64, 0",
        "128, 1, 32, 20",
        "128, 2, 16, 20",
        "256, 1, 4, 8",
    ];
    let of = |t: &&str| match *t {
        "double" => doubles.to_vec(),
        _ => singles.to_vec(),
    };
    let mut all = Vec::new();
    for name in ["lstm_sequence", "lstm_sequence_back"] {
        for t in &TYPES {
            all.extend(of(t).into_iter().map(|table| format!("{name}<{t}, {table}>")));
        }
    }
    all
}

/// What is read from the network, with a warp a row or four.
fn heads() -> Vec<String> {
    let mut all = each("head_gradient", "");
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
    let products = [
        each("projection", ""),
        each("input_gradient", ""),
        each("parameter_gradient", ""),
        each("peephole_gradient", ""),
        each("norm_gradient", ""),
    ];
    lab_kernel_build::Stage::new()
        .kernel("kernels/v0_cell.cu", &cell.concat())
        .kernel("kernels/v1_sequence.cu", &sequences())
        .kernel("kernels/norm_cell.cu", &norm.concat())
        .kernel("kernels/gru_cell.cu", &gru.concat())
        .kernel("kernels/products.cu", &products.concat())
        .kernel("kernels/gather.cu", &[each("gather_series", ""), each("gather_text", "")].concat())
        .kernel("kernels/head.cu", &heads())
        .kernel("kernels/dropout.cu", &each("dropout", ""))
        .kernel("kernels/update.cu", &updates())
        .build();
}
