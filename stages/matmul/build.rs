//! The stage's table of kernels.

const TYPES: [&str; 3] = ["float", "__half", "__nv_bfloat16"];

/// `name<T, arguments>` for each type.
fn each(name: &str, arguments: &str) -> Vec<String> {
    let comma = if arguments.is_empty() { "" } else { ", " };
    TYPES.iter().map(|t| format!("{name}<{t}{comma}{arguments}>")).collect()
}

/// `name<T, BM, BN, BK, …, PACK>` for each type, by packs of 16 bytes and by single elements. Twice
/// the elements in a pack ask for a tile twice as deep: each thread has one to load.
fn packed(name: &str, tiles: &str, threads: &str) -> Vec<String> {
    let mut all = Vec::new();
    for t in TYPES {
        let (depth, pack) = if t == "float" { (8, 4) } else { (16, 8) };
        for pack in [pack, 1] {
            all.push(format!("{name}<{t}, {tiles}, {depth}, {threads}, {pack}>"));
        }
    }
    all
}

fn main() {
    // Wide tiles, and others where there are few of them.
    let pipelined = ["128, 256, 8, 64, 64, 8, 16, 3, 1", "128, 128, 8, 64, 32, 8, 8, 3, 2"]
        .map(|tiles| [4, 1].map(|pack| format!("matmul_async<float, {tiles}, {pack}>")))
        .concat();
    let tensor = |name: &str| {
        let types = [("float", 16, 4), ("__half", 32, 8), ("__nv_bfloat16", 32, 8)];
        let all = types.map(|(t, depth, pack)| {
            [pack, 1].map(|p| format!("{name}<{t}, 128, 256, {depth}, 64, 64, 4, {p}>"))
        });
        all.concat()
    };
    let halves = |name: &str, tiles: &str| {
        ["__half", "__nv_bfloat16"].map(|t| format!("{name}<{t}, {tiles}>"))
    };
    // The depth of a tile is a span of 128 bytes; then places, and the height of a stripe of tiles.
    let persistent = |name: &str, high: u32| halves(name, &format!("128, 256, 64, 4, {high}"));
    let sized =
        [halves("matmul_split", "64, 64, 64, 6"), halves("matmul_split", "128, 128, 64, 6")]
            .concat();
    // Columns of a tile of the last round: multiples of 16, so that no two tiles share a sector of memory.
    let last = |name: &str, columns: &[u32]| {
        let of = |last: &u32| halves(name, &format!("128, 256, {last}, 64, 4, 16"));
        columns.iter().flat_map(of).collect::<Vec<_>>()
    };
    // Of the gradients the product by columns of x, in f32, to be added to.
    let linear = ["__half", "__nv_bfloat16"].map(|t| {
        let lies =
            |out: &str, lies: &str, tile: &str| format!("linear<{t}, {out}, {lies}, {tile}, 16>");
        let [wide, narrow, f32] = ["128, 256, 64, 3", "128, 128, 64, 5", "128, 128, 64, 4"];
        [
            lies(t, "ALONG_K, ALONG_K", wide),
            lies(t, "ALONG_K, ALONG_K", narrow),
            lies("float", "ALONG_K, ALONG_K", f32),
            lies(t, "ALONG_K, ACROSS_K", wide),
            lies("float", "ACROSS_K, ACROSS_K", f32),
        ]
    });
    let linear = linear.concat();
    let turns = ["__half", "__nv_bfloat16"].map(|t| {
        [(t, "ALONG_K, ALONG_K", 5), ("float", "ALONG_K, ALONG_K", 3), (t, "ALONG_K, ACROSS_K", 5)]
            .map(|(out, lies, places)| {
                format!("linear_turns<{t}, {out}, {lies}, 128, 128, 64, {places}, 16>")
            })
    });
    let mut plain = ["ALONG_K, ALONG_K", "ALONG_K, ACROSS_K", "ACROSS_K, ACROSS_K"]
        .map(|lies| format!("linear_plain<float, float, {lies}>"))
        .to_vec();
    // Others of these types are compiled for a GPU as they are asked for, with the parameters of these.
    for t in ["__half", "__nv_bfloat16"] {
        plain.extend([t, "float"].map(|out| format!("linear_plain<{t}, {out}, ALONG_K, ALONG_K>")));
    }
    let behind = ["ALONG_K", "ACROSS_K"]
        .map(|b| halves("linear_behind", &format!("{b}, 128, 256, 64, 4, 16")));
    let behind = behind.concat();
    let gradient =
        [&halves("weight_gradient", "128, 256, 64, 4, 16")[..], &["sum_parts".into()]].concat();
    lab_kernel_build::Stage::new()
        .kernel("kernels/v0_naive.cu", &each("matmul_naive", ""))
        .kernel("kernels/v1_coalesced.cu", &each("matmul_coalesced", ""))
        .kernel("kernels/v2_tiled.cu", &each("matmul_tiled", "32"))
        .kernel("kernels/v3_rows.cu", &each("matmul_rows", "64, 64, 8, 8"))
        .kernel("kernels/v4_blocks.cu", &packed("matmul_blocks", "128, 128", "8, 8"))
        .kernel("kernels/v5_warps.cu", &packed("matmul_warps", "128, 128", "64, 32, 8, 8"))
        .kernel("kernels/v6_async.cu", &pipelined)
        .needs("sm_80")
        .kernel("kernels/v7_mma.cu", &tensor("matmul_mma"))
        .needs("sm_80")
        .kernel("kernels/v7_tensor.cu", &tensor("matmul_tensor"))
        .needs("sm_80")
        .kernel("kernels/v8_wgmma.cu", &halves("matmul_wgmma", "128, 128, 64"))
        .needs("sm_90a")
        .kernel("kernels/v9_ring.cu", &halves("matmul_ring", "128, 128, 64, 2"))
        .needs("sm_90a")
        .kernel("kernels/v10_roles.cu", &halves("matmul_roles", "128, 128, 64, 3"))
        .needs("sm_90a")
        .kernel("kernels/v11_wide.cu", &halves("matmul_wide", "128, 256, 64, 4"))
        .needs("sm_90a")
        .kernel("kernels/v12_persistent.cu", &persistent("matmul_persistent", 16))
        .needs("sm_90a")
        .kernel("kernels/v13_stores.cu", &persistent("matmul_stores", 16))
        .needs("sm_90a")
        .kernel("kernels/v14_multicast.cu", &persistent("matmul_multicast", 8))
        .needs("sm_90a")
        .kernel("kernels/v15_split.cu", &sized)
        .needs("sm_90a")
        .kernel("kernels/v16_turned.cu", &["matmul_turned<float, 256, 128, 32, 4, 8>"])
        .needs("sm_90a")
        .kernel("kernels/v17_grid.cu", &halves("matmul_grid", "128, 256, 64, 4"))
        .needs("sm_90a")
        .kernel("kernels/linear.cu", &linear)
        .needs("sm_90a")
        .kernel("kernels/linear_turns.cu", &turns.concat())
        .needs("sm_90a")
        .kernel("kernels/linear_behind.cu", &behind)
        .needs("sm_90a")
        .kernel("kernels/linear_swiglu.cu", &halves("linear_swiglu", "128, 256, 64, 4, 16"))
        .needs("sm_90a")
        .spills(8) // once a tile, in f16
        .kernel(
            "kernels/linear_swiglu_back.cu",
            &halves("linear_swiglu_back", "128, 256, 64, 3, 16"),
        )
        .needs("sm_90a")
        .kernel(
            "kernels/linear_swiglu_back_turns.cu",
            &halves("linear_swiglu_back_turns", "128, 128, 64, 4, 16"),
        )
        .needs("sm_90a")
        .kernel("kernels/linear_plain.cu", &plain)
        .kernel("kernels/weight_gradient.cu", &gradient)
        .needs("sm_90a")
        .kernel("kernels/v18_turned_grid.cu", &["matmul_turned_grid<float, 256, 128, 32, 4>"])
        .needs("sm_90a")
        .kernel("kernels/v19_narrow.cu", &last("matmul_narrow", &[64, 144, 192]))
        .needs("sm_90a")
        .kernel("kernels/v20_behind.cu", &last("matmul_behind", &[64, 144, 192, 256]))
        .needs("sm_90a")
        .spills(36) // once, where the tile of the last round is computed; with 256 columns none
        .kernel("kernels/v21_snake.cu", &last("matmul_snake", &[64, 144, 192, 256]))
        .needs("sm_90a")
        .build();
}
