//! The stage's table of kernels.

/// Of x and y, and of W.
const TYPES: [[&str; 2]; 6] = [
    ["float", "float"],
    ["__half", "__half"],
    ["__nv_bfloat16", "__nv_bfloat16"],
    ["float", "signed char"],
    ["__half", "signed char"],
    ["__nv_bfloat16", "signed char"],
];

fn main() {
    let same = || TYPES.iter().filter(|[t, w]| t == w);
    let naive: Vec<_> = same().map(|[t, _]| format!("few_rows_naive<{t}>")).collect();
    let rows = [1, 4, 16];
    let warp: Vec<_> =
        same().flat_map(|[t, _]| rows.map(|r| format!("few_rows_warp<{t}, {r}>"))).collect();
    let flight: Vec<_> = TYPES
        .iter()
        .flat_map(|[t, w]| rows.map(|r| format!("few_rows_flight<{t}, {w}, {r}>")))
        .collect();
    // The last: tiles of eight rows of x; steps in flight.
    let mma: Vec<_> = TYPES
        .iter()
        .filter(|[t, _]| *t != "float")
        .flat_map(|[t, w]| {
            [(1, 2), (2, 2), (4, 2), (8, 1)]
                .map(|(tiles, depth)| format!("few_rows_mma<{t}, {w}, {tiles}, {depth}>"))
        })
        .collect();
    // The same, with the norm of x or without.
    let persistent: Vec<_> = TYPES
        .iter()
        .filter(|[t, _]| *t != "float")
        .flat_map(|[t, w]| {
            let of = move |(tiles, norm)| {
                let depth = if tiles > 4 { 1 } else { 2 };
                format!("few_rows_persistent<{t}, {w}, {tiles}, {depth}, {norm}>")
            };
            let none = [1, 2, 4, 8].map(|tiles| (tiles, "NONE"));
            [none.as_slice(), &[(1, "RMS"), (1, "HEADS")]].concat().into_iter().map(of)
        })
        .collect();
    let split: Vec<_> = TYPES
        .iter()
        .filter(|[t, _]| *t != "float")
        .flat_map(|[t, w]| [2, 4, 8].map(|tiles| format!("few_rows_split<{t}, {w}, {tiles}>")))
        .collect();
    // One row of x or two, the norm; then warps, rows of W at a time, steps in flight, blocks of a multiprocessor, and how long before
    // the end the next launch may begin.
    let walking = |name: &str, tilings: [&str; 2]| -> Vec<String> {
        let halves = TYPES.iter().filter(|[t, _]| *t != "float");
        let of = |[t, w]: &[&str; 2]| {
            ["NONE", "RMS", "HEADS"]
                .into_iter()
                .flat_map(|norm| {
                    [1, 2].map(|rows| {
                        format!("few_rows_{name}<{t}, {w}, {rows}, {norm}, {}>", tilings[rows - 1])
                    })
                })
                .collect::<Vec<_>>()
        };
        halves.flat_map(of).collect()
    };
    let columns = walking("columns", ["16, 4, 2, 2, 1", "16, 4, 2, 1, 1"]);
    let ring = walking("ring", ["16, 2, 5, 2, 1"; 2]);
    // The same of x as bytes, W of int8; without the last.
    let dots: Vec<_> = ["__half", "__nv_bfloat16"]
        .iter()
        .flat_map(|t| {
            ["NONE", "RMS", "HEADS"].into_iter().flat_map(move |norm| {
                [(1, 2), (2, 1)].map(|(rows, blocks)| {
                    format!("few_rows_dots<{t}, {rows}, {norm}, 16, 4, 2, {blocks}>")
                })
            })
        })
        .collect();
    // Rows of x; then rows of W by 64, steps in shared memory, blocks of a multiprocessor: as src/wgmma.rs chooses.
    let wgmma: Vec<_> = TYPES
        .iter()
        .filter(|[t, _]| *t != "float")
        .flat_map(|[t, w]| {
            let low = if t == w {
                ["16, 2, 6, 2", "32, 2, 5, 2", "64, 2, 4, 2", "128, 2, 3, 2"]
            } else {
                ["16, 2, 5, 2", "32, 2, 4, 2", "64, 2, 3, 2", "128, 2, 4, 1"]
            };
            let high = ["16, 3, 8, 1", "32, 3, 7, 1", "64, 3, 6, 1", "128, 3, 5, 1"];
            let high = high.into_iter().filter(move |_| t == w);
            low.into_iter()
                .chain(high)
                .map(move |tiling| format!("few_rows_wgmma<{t}, {w}, {tiling}>"))
        })
        .collect();
    // The same of x as bytes.
    let bytes: Vec<_> = ["__half", "__nv_bfloat16"]
        .iter()
        .flat_map(|t| {
            let low = ["8, 2, 6, 2", "16, 2, 5, 2", "32, 2, 4, 2", "64, 2, 3, 2", "128, 2, 4, 1"];
            let high = ["8, 3, 8, 1", "16, 3, 7, 1", "32, 3, 6, 1", "64, 3, 5, 1"];
            let tilings = low.into_iter().chain(high);
            let products = tilings.map(|tiling| format!("few_rows_bytes<{t}, {tiling}>"));
            let rows = ["NONE", "RMS", "HEADS"].map(|norm| format!("rows_as_bytes<{t}, {norm}>"));
            products.chain(rows).collect::<Vec<_>>()
        })
        .collect();
    // The same of bytes that products make.
    let units: Vec<_> = ["__half", "__nv_bfloat16"]
        .iter()
        .flat_map(|t| {
            let low = ["8, 2, 6, 2", "16, 2, 5, 2", "32, 2, 4, 2", "64, 2, 6, 1"];
            let high = ["8, 3, 8, 1", "16, 3, 7, 1", "32, 3, 6, 1", "64, 3, 5, 1"];
            let products =
                low.into_iter().chain(high).map(|tiling| format!("few_rows_units<{t}, {tiling}>"));
            let rows = ["NONE", "RMS", "HEADS"].map(|norm| format!("rows_as_units<{t}, {norm}>"));
            products.chain(rows).collect::<Vec<_>>()
        })
        .collect();
    let to = ["float", "__half", "__nv_bfloat16"].map(|t| format!("dequantize<{t}>"));
    lab_kernel_build::Stage::new()
        .kernel("kernels/v0_naive.cu", &naive)
        .kernel("kernels/v1_warp.cu", &warp)
        .kernel("kernels/v2_flight.cu", &flight)
        .kernel("kernels/dequantize.cu", &to)
        .kernel("kernels/v3_mma.cu", &mma)
        .needs("sm_80")
        .spills(8) // of 32 rows of x
        .kernel("kernels/v4_persistent.cu", &persistent)
        .needs("sm_80")
        .spills(8) // of two rows of x with int8
        .kernel("kernels/v5_split.cu", &split)
        .needs("sm_90")
        .spills(16) // of 64 rows of x
        .kernel("kernels/v6_columns.cu", &columns)
        .needs("sm_80")
        .spills(16) // of places, with a norm
        .kernel("kernels/v7_ring.cu", &ring)
        .needs("sm_80")
        .kernel("kernels/v8_wgmma.cu", &wgmma)
        .needs("sm_90a")
        .kernel("kernels/v9_bytes.cu", &bytes)
        .needs("sm_90a")
        .spills(28) // of heads in f16, made bytes
        .kernel("kernels/v10_dots.cu", &dots)
        .needs("sm_80")
        .spills(32) // of places
        .kernel("kernels/v11_units.cu", &units)
        .needs("sm_90a")
        .build();
}
