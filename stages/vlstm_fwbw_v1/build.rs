//! The stage's table of kernels: the tiles in use, of each class of heads and each type.

/// Of heads with at most DH columns, the tiles of the three kernels: rows that a block owns, rows that
/// come past it, columns of a piece (CX), rows and columns of threads (WI, WJ), blocks of a
/// multiprocessor. As measured on an H200.
const CLASSES: [(usize, [usize; 6]); 3] =
    [(64, [64, 64, 64, 8, 16, 3]), (128, [64, 64, 64, 8, 16, 2]), (256, [32, 64, 64, 8, 16, 2])];

/// Larger tiles, built for their test: more rows owned than come past at a time, and fewer.
const OTHERS: [(usize, [usize; 6]); 2] =
    [(64, [128, 64, 32, 16, 8, 2]), (64, [64, 128, 32, 8, 16, 2])];

/// What came before: tiles that are loaded whole (CX is 0), as those of `vlstm_fwbw_v0`.
const WHOLE: [(usize, [usize; 6]); 2] = [(64, [64, 64, 0, 8, 16, 2]), (128, [64, 64, 0, 8, 16, 2])];

fn name(kernel: &str, t: &str, (dh, tiles): (usize, [usize; 6]), more: &str) -> String {
    let [own, past, piece, rows, columns, blocks] = tiles;
    format!("{kernel}<{t}, {own}, {past}, {dh}, {piece}, {rows}, {columns}, {blocks}{more}>")
}

fn main() {
    let of = |kernel: &str| {
        let mut all = Vec::new();
        for t in ["float", "__half", "__nv_bfloat16"] {
            all.extend(CLASSES.map(|class| name(kernel, t, class, "")));
        }
        all.extend(OTHERS.map(|class| name(kernel, "float", class, "")));
        all.extend(WHOLE.map(|class| name(kernel, "float", class, "")));
        all.extend(WHOLE.map(|class| name(kernel, "float", class, ", InRows")));
        all
    };
    lab_kernel_build::Stage::new()
        .kernel("kernels/forward.cu", &of("vlstm_forward"))
        .spills(124)
        .needs("sm_80")
        .kernel("kernels/backward.cu", &[of("vlstm_backward_q"), of("vlstm_backward_kv")].concat())
        .spills(84)
        .needs("sm_80")
        .build();
}
