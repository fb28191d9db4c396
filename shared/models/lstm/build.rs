//! The kernels of training around the recurrence: a batch's windows, dropout between layers, the head and its loss, the optimizer.

const TYPES: [&str; 4] = ["float", "double", "__half", "__nv_bfloat16"];

/// `name<T, arguments>` for each type.
fn each(name: &str, arguments: &str) -> Vec<String> {
    let comma = if arguments.is_empty() { "" } else { ", " };
    TYPES.iter().map(|t| format!("{name}<{t}{comma}{arguments}>")).collect()
}

/// What is read from the network, with a warp a row or four.
fn head_loss_instances() -> Vec<String> {
    let mut all = Vec::new();
    for t in TYPES {
        let numbers = if t == "double" { "double" } else { "float" };
        for data in [format!("{numbers}, false"), "int, true".into()] {
            all.extend([32, 128].map(|threads| format!("head_loss<{t}, {data}, {threads}>")));
        }
    }
    all
}

/// The head of a text on tensor cores, whose outputs are all columns of a tile, and the gradient by its weight: rows, columns and
/// depth of a tile, places of the ring.
fn head_products() -> Vec<String> {
    let of_halves = |kernel: &str| TYPES[2..].iter().map(|t| kernel.replace('T', t)).collect();
    let all: [Vec<String>; 2] =
        ["head_of_text<T, 128, 256, 64, 4>", "head_gradient<T, 128, 128, 64, 6>"].map(of_halves);
    all.concat()
}

/// The optimizer's rules, by their numbers in `lab/optimizer.cuh`.
fn updates() -> Vec<String> {
    let rules = ["SGD", "ADAM", "ADAMW"].map(|rule| each("update", rule));
    [each("gradient_squares", ""), rules.concat()].concat()
}

fn main() {
    lab_kernel_build::Stage::new()
        .kernel("kernels/gather.cu", &[each("gather_series", ""), each("gather_text", "")].concat())
        .kernel("kernels/head.cu", &head_loss_instances())
        .kernel("kernels/head_tensor.cu", &head_products())
        .needs("sm_90a")
        .spills(232) // of a row's sums, behind all products
        .kernel("kernels/dropout.cu", &each("dropout", ""))
        .kernel("kernels/update.cu", &updates())
        .build();
}
