//! The stage's table of kernels.

fn main() {
    let halves = ["__half", "__nv_bfloat16"];
    let all = ["float", halves[0], halves[1]];
    // Elements of a copy: 16 bytes, or one.
    let packed = |name: &str| {
        let packs = all.map(|t| {
            let pack = if t == "float" { 4 } else { 8 };
            [pack, 1].map(|p| format!("{name}<{t}, {p}>"))
        });
        packs.concat()
    };
    let reordered = [packed("qkv_state_parts"), packed("qkv_rows")].concat();
    let state = all.map(|t| format!("qkv_state<{t}>"));
    // DQK, DHV, places: with 64 columns two blocks share a multiprocessor's 227 KB of shared memory.
    let wgmma = |name: &str| {
        let tiles = ["64, 64, 5", "128, 128, 3"];
        halves.map(|t| tiles.map(|tile| format!("{name}<{t}, {tile}>"))).concat()
    };
    let two_launches = [wgmma("qkv_wgmma_parts"), wgmma("qkv_wgmma_rows")].concat();
    // One block has all of it.
    let resident = halves
        .map(|t| ["64, 64, 13", "128, 128, 6"].map(|tile| format!("qkv_resident<{t}, {tile}>")));
    lab_kernel_build::Stage::new()
        .kernel("kernels/v0_reordered.cu", &reordered)
        .needs("sm_80")
        .kernel("kernels/add_parts.cu", &state)
        .kernel("kernels/v1_wgmma.cu", &two_launches)
        .needs("sm_90a")
        .kernel("kernels/v2_cluster.cu", &wgmma("qkv_cluster"))
        .needs("sm_90a")
        .kernel("kernels/v3_resident.cu", &resident.concat())
        .needs("sm_90a")
        .build();
}
