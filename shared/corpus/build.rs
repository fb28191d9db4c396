//! Every kernel of the corpus. Those that are no templates are found in the files themselves.

use std::path::Path;

/// The templates among them, with the arguments wanted.
const TEMPLATES: [(&str, &str); 17] = [
    ("memory", "guarded_copy<unsigned char>"),
    ("memory", "guarded_copy<__half>"),
    ("memory", "guarded_copy<float>"),
    ("memory", "guarded_copy<double>"),
    ("tensor", "mma_product<__half>"),
    ("tensor", "mma_product<__nv_bfloat16>"),
    ("tensor", "mma_product<float>"),
    ("wgmma", "wgmma_product<__half>"),
    ("wgmma", "wgmma_product<__nv_bfloat16>"),
    ("wgmma", "wgmma_product<float>"),
    ("wgmma", "wgmma_span<16>"),
    ("wgmma", "wgmma_span<32>"),
    ("wgmma", "wgmma_span<64>"),
    ("wgmma", "wgmma_span<128>"),
    ("tensor_copy", "tensor_swizzled<32>"),
    ("tensor_copy", "tensor_swizzled<64>"),
    ("tensor_copy", "tensor_swizzled<128>"),
];

macro_rules! shapes {
    ($($t:literal $of:ident $n:literal $a:literal $b:literal $registers:literal;)*) => {
        /// The products by random descriptors.
        const DESCRIBED: &[&str] = &[$(
            concat!("described<", $t, ", ", $n, ", ", $a, ", ", $b, ", ", $registers, ">"),
        )*];
    };
}
include!("src/shapes.in");

const FILES: [&str; 18] = [
    "memory",
    "shared",
    "init",
    "race",
    "blocks",
    "sync",
    "order",
    "locks",
    "async",
    "tensor",
    "mbarrier",
    "bulk",
    "wgmma",
    "tensor_copy",
    "counted",
    "instructions",
    "formal",
    "beyond",
];

fn names(file: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels").join(format!("{file}.cu"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let plain = text.lines().filter_map(|line| {
        let rest = line.strip_prefix("__global__ void ")?;
        let bounds = rest.strip_prefix("__launch_bounds__(").and_then(|r| r.split_once(") "));
        bounds.map_or(rest, |(_, rest)| rest).split('(').next()
    });
    let templates = TEMPLATES.iter().filter(|(f, _)| *f == file).map(|(_, name)| *name);
    plain.chain(templates).map(str::to_owned).collect()
}

fn main() {
    let stage = FILES.iter().fold(lab_kernel_build::Stage::new(), |stage, file| {
        // The corpus is run with the emulator's checks: nearly nobody needs it without.
        let stage = stage.kernel(&format!("kernels/{file}.cu"), &names(file));
        match *file {
            "tensor" => stage.needs("sm_80"),
            "mbarrier" | "bulk" => stage.needs("sm_90"),
            "wgmma" | "tensor_copy" | "instructions" => stage.needs("sm_90a"),
            _ => stage,
        }
    });
    let ranks = 1..=5;
    let maps: Vec<String> = ["box_loaded", "box_stored"]
        .iter()
        .flat_map(|name| ranks.clone().map(move |rank| format!("{name}<{rank}>")))
        .collect();
    stage
        .kernel("kernels/descriptors.cu", DESCRIBED)
        .needs("sm_90a")
        .kernel("kernels/maps.cu", &maps)
        .needs("sm_90")
        .build();
}
