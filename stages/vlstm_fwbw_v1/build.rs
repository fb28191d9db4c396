//! The stage's table of kernels: the tiles in use, of each class of heads and each type.

#[allow(dead_code)] // the library uses more of it
#[path = "src/tiles.rs"]
mod tiles;

fn main() {
    let of = |kernel: usize| {
        let mut all = Vec::new();
        for t in ["float", "__half", "__nv_bfloat16"] {
            for class in tiles::CLASSES {
                all.push(class.instantiation(kernel, t));
            }
        }
        all.extend(tiles::OTHERS.map(|class| class.instantiation(kernel, "float")));
        all
    };
    println!("cargo::rerun-if-changed=src/tiles.rs");
    lab_kernel_build::Stage::new()
        .kernel("kernels/forward.cu", &of(tiles::FORWARD))
        .needs("sm_80")
        .kernel("kernels/backward.cu", &[of(tiles::BACKWARD_Q), of(tiles::BACKWARD_KV)].concat())
        .needs("sm_80")
        .build();
}
