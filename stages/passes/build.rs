//! The stage's table of kernels.

/// A type, and how many of its elements 16 bytes hold.
const TYPES: [(&str, usize); 3] = [("float", 4), ("__half", 8), ("__nv_bfloat16", 8)];

/// `name<T, N>` with packs and with single elements, of each type.
fn packed(name: &str) -> Vec<String> {
    let of = |(t, n): &(&str, usize)| [format!("{name}<{t}, {n}>"), format!("{name}<{t}, 1>")];
    TYPES.iter().flat_map(of).collect()
}

/// `name<T, LANES, PACKS, N>` for rows of up to LANES · `cells` elements: the first that holds a row is taken. Packs first,
/// then single elements; and last those that only the emulator takes, where a lane is a coroutine: few lanes for short rows.
fn strips(name: &str, packs: &[(usize, usize)], (lanes, cells): (usize, usize)) -> Vec<String> {
    let mut all = Vec::new();
    for (t, n) in TYPES {
        let strip =
            |(lanes, cells): &(usize, usize)| format!("{name}<{t}, {lanes}, {}, {n}>", cells / n);
        all.extend(packs.iter().map(strip));
        all.push(format!("{name}<{t}, {lanes}, {cells}, 1>"));
    }
    all.extend([1, 2, 4, 8].map(|lanes| format!("{name}<float, {lanes}, 8, 4>")));
    all
}

fn main() {
    let rows =
        |name| strips(name, &[(32, 24), (32, 32), (256, 8), (256, 16), (256, 32)], (256, 32));
    let heads = |name| strips(name, &[(16, 8), (16, 16), (32, 16), (256, 8)], (256, 8));
    let gates = |name: &str| {
        let same = TYPES.map(|(t, _)| format!("{name}<{t}, {t}>"));
        let beside = ["__half", "__nv_bfloat16"].map(|t| format!("{name}<float, {t}>"));
        [same.to_vec(), beside.to_vec()].concat()
    };
    let logits = |name: &str| -> Vec<String> {
        let of = |(t, n): (&str, usize)| {
            let tiles = [format!("256, {n}"), format!("1024, {n}"), "256, 1".to_owned()];
            let capped =
                |tile: &String| ["true", "false"].map(|c| format!("{name}<{t}, {tile}, {c}>"));
            tiles.iter().flat_map(capped).collect::<Vec<_>>()
        };
        // One warp a row: the emulator's.
        let few = ["true", "false"].map(|c| format!("{name}<float, 32, 4, {c}>"));
        TYPES.into_iter().flat_map(of).chain(few).collect()
    };
    let staged = |(t, n): (&str, usize)| {
        let capped = |threads| {
            ["true", "false"].map(|c| format!("cross_entropy_staged<{t}, {threads}, {n}, {c}>"))
        };
        [256, 512].into_iter().flat_map(capped).collect::<Vec<_>>()
    };
    let staged: Vec<String> = TYPES.into_iter().flat_map(staged).collect();
    // 32 threads are the emulator's.
    let kept = ["__half", "__nv_bfloat16"]
        .map(|t| [32, 512].map(|threads| format!("cross_entropy_kept<{t}, {threads}, 13>")));
    let plain = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
    let sorting = ["count_tokens", "scan_counts", "place_rows", "order_rows", "join_pieces"];
    let clear = ["4", "1"].map(|n| format!("clear_unused<float, {n}>")).to_vec();
    // Gradients are f32, or bf16 where devices have summed rounded ones.
    let of_rounded = |t: &str| [format!("adamw<{t}>"), format!("adamw<{t}, __nv_bfloat16>")];
    let adamw: Vec<String> = TYPES.iter().flat_map(|(t, _)| of_rounded(t)).collect();
    let squares = plain(&["arena_squares<float>", "arena_squares<__nv_bfloat16>"]);
    lab_kernel_build::Stage::new()
        .kernel("kernels/column_sums.cu", &["column_sums"])
        .kernel("kernels/rms_norm.cu", &[rows("rms_norm"), rows("rms_norm_back")].concat())
        .spills(12) // where rows are no packs
        .kernel("kernels/head_norm.cu", &[heads("head_norm"), heads("head_norm_back")].concat())
        .spills(268) // of f32, whose next row is on its way in twice the registers; 0 of halves
        .kernel("kernels/swiglu.cu", &[packed("swiglu"), packed("swiglu_back")].concat())
        .kernel(
            "kernels/gates.cu",
            &[gates("soft_cap_gates"), gates("soft_cap_gates_back")].concat(),
        )
        .kernel("kernels/documents.cu", &["shut_gates"])
        .kernel("kernels/heads.cu", &packed("move_heads"))
        .kernel("kernels/rope.cu", &packed("rope"))
        .kernel("kernels/append.cu", &packed("append_to_cache"))
        .kernel("kernels/dropout.cu", &packed("dropout"))
        .kernel("kernels/widen.cu", &[packed("widen"), packed("narrow")].concat())
        .kernel(
            "kernels/embedding.cu",
            &[packed("embedding"), packed("sum_pieces"), plain(&sorting), clear].concat(),
        )
        .kernel(
            "kernels/cross_entropy.cu",
            &[logits("losses"), logits("cross_entropy"), plain(&["count_targets", "mean_loss"])]
                .concat(),
        )
        .spills(4)
        .kernel("kernels/cross_entropy_staged.cu", &staged)
        .needs("sm_90")
        .kernel("kernels/cross_entropy_kept.cu", &kept.concat())
        .needs("sm_90")
        .spills(4) // of f16
        .kernel("kernels/adamw.cu", &[squares, adamw].concat())
        .build();
}
