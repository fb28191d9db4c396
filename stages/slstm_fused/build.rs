//! The stage's table of kernels.

const TYPES: [&str; 3] = ["float", "__half", "__nv_bfloat16"];

/// `name<T>` for each type.
fn each(names: &[&str]) -> Vec<String> {
    names.iter().flat_map(|name| TYPES.map(|t| format!("{name}<{t}>"))).collect()
}

/// Of a launch for all steps: units of a head, HT; blocks of a cluster, of 16 units or several of them; its rows of the batch.
///
/// A warp's weights are HT² / (128 BLOCKS) registers a thread: with 128 of them a thread of 255 has enough for all else.
/// Eight rows are the columns of an mma.
const HEADS: &[[usize; 3]] = &[[64, 1, 8], [128, 2, 8], [192, 4, 8], [256, 4, 8]];

/// `name<T, HT, BLOCKS, ROWS>` for both halves.
fn heads(name: &str) -> Vec<String> {
    let of_type = |t: &str| {
        HEADS
            .iter()
            .map(|[ht, blocks, rows]| format!("{name}<{t}, {ht}, {blocks}, {rows}>"))
            .collect()
    };
    TYPES[1..].iter().flat_map(|t| -> Vec<String> { of_type(t) }).collect()
}

/// `name<T, PACK>` for both halves, of rows in packs of 8 elements, and of others.
fn tiles(name: &str) -> Vec<String> {
    TYPES[1..].iter().flat_map(|t| [8, 1].map(|pack| format!("{name}<{t}, {pack}>"))).collect()
}

fn main() {
    lab_kernel_build::Stage::new()
        .kernel("kernels/v0_cell.cu", &each(&["slstm_cell", "slstm_cell_back", "slstm_cell_first"]))
        .kernel("kernels/gradients.cu", &each(&["r_gradient", "b_gradient"]))
        .kernel("kernels/v1_heads.cu", &heads("slstm_heads"))
        .needs("sm_90")
        .spills(336) // of 256 units, while fragments are loaded: none in a step
        .kernel("kernels/v1_heads_back.cu", &heads("slstm_heads_back"))
        .needs("sm_90")
        .spills(192) // of 256 units, while fragments are loaded: none in a step
        .kernel("kernels/v1_gradient.cu", &tiles("r_gradient_tiles"))
        .needs("sm_80")
        .build();
}
