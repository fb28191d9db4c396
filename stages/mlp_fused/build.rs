//! The stage's table of kernels.

/// With an element each, or with packs of four.
const PACKS: [&str; 2] = ["1", "4"];

/// `name<arguments, PACK>` for each pack.
fn packed(name: &str, arguments: &str) -> Vec<String> {
    PACKS.iter().map(|pack| format!("{name}<{arguments}{pack}>")).collect()
}

/// The same of gradients that are kept, and of those that move the parameters.
fn used(name: &str) -> Vec<String> {
    [packed(name, "KEEP, "), packed(name, "DESCEND, ")].concat()
}

fn main() {
    let each = |name: &str| ["float", "double"].map(|t| format!("{name}<{t}>"));
    let plain = ["forward", "backward", "update"].map(each);
    // Tiles of 64 rows, and of 128 that are loaded in packs.
    let with_rows = |name: &str, arguments: &str| {
        ["64, 1", "64, 4", "128, 4"].map(|tile| format!("{name}<{arguments}{tile}>")).to_vec()
    };
    let batch = [
        packed("hidden", ""),
        with_rows("logits", ""),
        vec!["softmax_loss<256>".to_owned()],
        with_rows("output_input", ""),
        vec!["hidden_gradient<256>".to_owned()],
        with_rows("output_weights", "KEEP, "),
        with_rows("output_weights", "DESCEND, "),
        used("input_weights"),
    ];
    let rooms =
        ["64, 64, 64, 64, 3", "64, 64, 128, 64, 2", "32, 64, 256, 64, 2", "32, 64, 512, 32, 2"];
    let mut recomputed = vec!["merge<256>".to_owned()];
    for room in rooms {
        recomputed.push(format!("attend<{room}>"));
        recomputed.extend(packed("output_weights", &format!("{room}, ")));
    }
    let tiles = ["128, 128, 32, 64", "64, 64, 32, 32"];
    let tiled = |name: &str, arguments: &str| -> Vec<String> {
        tiles.iter().map(|tile| format!("{name}<{arguments}{tile}>")).collect()
    };
    let mut tensor = vec!["round_weights<__nv_bfloat16>".to_owned(), "softmax_halves<256>".into()];
    tensor.extend(packed("hidden_halves", ""));
    tensor.extend(["logits_tensor", "output_input_tensor"].iter().flat_map(|n| tiled(n, "")));
    for how in ["KEEP, ", "DESCEND, "] {
        let pack = |pack: &&str| tiled("output_weights_tensor", &format!("{how}{pack}, "));
        tensor.extend(PACKS.iter().flat_map(pack));
    }
    let high = ["128, 128, 3", "64, 128, 3"];
    let mut wgmma = vec!["softmax_of_powers<256, 128>".to_owned()];
    let mut rounded = Vec::new();
    for pack in PACKS {
        rounded.extend(["64, 64", "32, 32"].map(|t| format!("hidden_rounded<{pack}, {t}>")));
        for how in ["KEEP", "DESCEND"] {
            rounded.push(format!("input_weights_rounded<{how}, {pack}, 32, 32, 16, 16>"));
        }
    }
    wgmma.extend(["128, 128, 3", "64, 64, 6"].map(|t| format!("hidden_gradient_wgmma<{t}>")));
    for tile in high {
        wgmma.push(format!("logits_wgmma<{tile}>"));
        for how in ["KEEP", "DESCEND"] {
            wgmma.extend(PACKS.map(|pack| format!("output_weights_wgmma<{how}, {pack}, {tile}>")));
        }
    }
    let rules = ["SGD", "ADAM", "ADAMW"].map(|rule| format!("update<float, {rule}>"));
    let update = [vec!["gradient_squares<float>".to_owned()], rules.to_vec()];
    lab_kernel_build::Stage::new()
        .kernel("kernels/v0_sample.cu", &plain.concat())
        .kernel("kernels/v1_batch.cu", &batch.concat())
        .spills(8) // where rows are no packs
        .kernel("kernels/v1_recomputed.cu", &recomputed)
        .needs("sm_80")
        .kernel("kernels/v1_tensor.cu", &tensor)
        .spills(64)
        .needs("sm_80")
        .kernel("kernels/v3_wgmma.cu", &wgmma)
        .spills(20) // of a tile of dx, which a block of output_weights_wgmma has in place of one of w2
        .needs("sm_90a")
        .kernel("kernels/v3_hidden.cu", &rounded)
        .spills(8)
        .needs("sm_90")
        .kernel("kernels/v2_resident.cu", &["resident<64, 32>", "resident<128, 64>"])
        .spills(8)
        .kernel("kernels/update.cu", &update.concat())
        .build();
}
