//! The stage's table of kernels.

const FLOATS: [&str; 3] = ["float", "__half", "__nv_bfloat16"];
const ALL: [&str; 4] = ["float", "__half", "__nv_bfloat16", "double"];

/// `name<T, arguments>` for each type.
fn each(types: &[&str], name: &str, arguments: &str) -> Vec<String> {
    let comma = if arguments.is_empty() { "" } else { ", " };
    types.iter().map(|t| format!("{name}<{t}{comma}{arguments}>")).collect()
}

/// Block sizes and packs a thread of the kernels that hold a row in registers, for packs of 16
/// bytes and for single elements. The first that holds the row is taken.
const WIDE: [(u32, u32); 4] = [(256, 1), (256, 2), (256, 4), (1024, 4)];
const SINGLE: [(u32, u32); 3] = [(256, 1), (256, 4), (1024, 16)];

fn rows(name: &str) -> Vec<String> {
    let pack = |t: &str| if t == "float" { 4 } else { 8 };
    let mut all = Vec::new();
    for t in FLOATS {
        all.extend(WIDE.iter().map(|(w, p)| format!("{name}<{t}, {w}, {p}, {}>", pack(t))));
        all.extend(SINGLE.iter().map(|(w, p)| format!("{name}<{t}, {w}, {p}, 1>")));
    }
    all
}

fn main() {
    let mut elementwise = Vec::new();
    for op in ["Relu", "Sigmoid", "Tanh"] {
        elementwise.extend(each(&FLOATS, "unary", op));
    }
    for op in ["Plus", "Times"] {
        elementwise.extend(each(&FLOATS, "binary", op));
    }
    let copies = ["copy_swapped", "copy", "copy_packs"];
    let transposes = [
        each(&FLOATS, "transpose", ""),
        each(&FLOATS, "transpose_tiled", "0"),
        each(&FLOATS, "transpose_tiled", "1"),
    ];
    let sums = ["sum_tree", "sum_shuffle", "sum_atomic", "sum"];
    let softmaxes = [
        each(&FLOATS, "softmax", "256"),
        each(&FLOATS, "softmax_online", "256"),
        rows("softmax_registers"),
    ];
    lab_kernel_build::Stage::new()
        .kernel("kernels/copy.cu", &copies.map(|n| each(&ALL, n, "")).concat())
        .kernel("kernels/saxpy.cu", &each(&ALL, "saxpy", ""))
        .kernel("kernels/elementwise.cu", &elementwise)
        .kernel("kernels/transpose.cu", &transposes.concat())
        .kernel("kernels/sum.cu", &sums.map(|n| each(&ALL, n, "256")).concat())
        .kernel("kernels/softmax.cu", &softmaxes.concat())
        .kernel("kernels/layernorm.cu", &rows("layernorm"))
        .build();
}
