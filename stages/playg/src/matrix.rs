//! Matrices: copies through a two-dimensional grid, and transposes.

use lab_device::{DType, Launch};
use lab_harness::{Dim, Error, Info, Input, Output, Plan, arguments};
use lab_reference::playg as reference;

use crate::kernels;
use crate::operation::{Formula, Operation, Run};

const LARGEST: usize = i32::MAX as usize;

/// No arithmetic: every bit must be right.
const EXACT: &[Output] = &[Output {
    name: "out",
    bounds: &[(DType::F32, 0.0), (DType::F64, 0.0), (DType::F16, 0.0), (DType::BF16, 0.0)],
    elements: &[(DType::F32, 0.0), (DType::F64, 0.0), (DType::F16, 0.0), (DType::BF16, 0.0)],
}];

static COPIES: Formula = Formula {
    name: "copy",
    offset: 0.0,
    flops: 0.0,
    elements: |dims| {
        let all = (dims.get("R") * dims.get("C")) as f64;
        [all, 2.0 * all]
    },
    reference: |of| of.values("x"),
    magnitude: |of| of.absolute("x"),
};

static TRANSPOSES: Formula = Formula {
    name: "transpose",
    reference: |of| reference::transpose(&of.values("x"), of.dim("C")),
    magnitude: |of| reference::transpose(&of.absolute("x"), of.dim("C")),
    ..COPIES
};

/// threadIdx.x runs down the rows.
pub static COPY_SWAPPED: Operation = Operation {
    info: Info {
        stage: "playg",
        name: "copy_swapped",
        family: &COPIES,
        parent: None,
        change: "threadIdx.x runs down the rows: each lane in a sector of its own",
        dtypes: &[DType::F32, DType::F64, DType::F16, DType::BF16],
        dims: &[
            Dim::new("R", "rows", [33, 16384, LARGEST]),
            Dim::new("C", "columns", [100, 4096, LARGEST]),
        ],
        settings: &[],
        inputs: &[Input::new("x", &["R..", "C"])],
        outputs: EXACT,
    },
    // 524,299: more columns than the grid's limit in y times 8, the rows of a block.
    shapes: &[
        &[1, 1],
        &[1, 31],
        &[33, 1],
        &[31, 33],
        &[7, 1000],
        &[1000, 24],
        &[100, 256],
        &[1, 524_299],
    ],
    large: &[8192, 4096],
    cpu: None,
    source: &kernels::COPY,
    plan: |plan, run| add_copy(plan, run, "copy_swapped"),
};

/// threadIdx.x runs along the columns.
pub static COPY: Operation = Operation {
    info: Info {
        name: "copy",
        parent: Some("copy_swapped"),
        change: "threadIdx.x runs along the columns: the lanes of a warp share their sectors",
        ..COPY_SWAPPED.info
    },
    plan: |plan, run| add_copy(plan, run, "copy"),
    ..COPY_SWAPPED
};

/// 16 bytes a lane.
pub static COPY_PACKS: Operation = Operation {
    info: Info {
        name: "copy_packs",
        parent: Some("copy"),
        change: "16 bytes a lane: more bytes on their way",
        ..COPY_SWAPPED.info
    },
    plan: |plan, run| {
        let whole = run.dim("C").is_multiple_of(run.pack());
        add_copy(plan, run, if whole { "copy_packs" } else { "copy" })
    },
    ..COPY_SWAPPED
};

/// Blocks of 32 × 8 threads. Where a grid in y would pass its limit the kernels stride.
fn add_copy(plan: &mut Plan, run: &Run<'_>, name: &str) -> Result<(), Error> {
    const X: usize = 32;
    const Y: usize = 8;
    let (rows, columns) = (run.dim("R"), run.dim("C"));
    let [x, out] = run.x_and_out(plan);
    let kernel = run.kernel(plan, &run.instance(name, ""))?;
    let grid = match name {
        "copy_swapped" => [rows.div_ceil(X), columns.div_ceil(Y)],
        "copy_packs" => [rows.div_ceil(Y), (columns / run.pack()).div_ceil(X)],
        _ => [rows.div_ceil(Y), columns.div_ceil(X)],
    };
    let grid = [grid[0] as u32, grid[1].min(65535) as u32, 1];
    let launch = Launch::new_3d(grid, [X as u32, Y as u32, 1]);
    plan.launch(&kernel, launch, arguments![x, out, rows, columns])
}

/// Straight from row to column.
pub static TRANSPOSE: Operation = Operation {
    info: Info {
        name: "transpose",
        family: &TRANSPOSES,
        change: "the load runs along a row, the store down a column",
        dtypes: &[DType::F32, DType::F16, DType::BF16],
        dims: &[
            Dim::new("R", "rows of x", [33, 16384, LARGEST]),
            // A tile of columns a block in y, of which there may be 65,535.
            Dim::new("C", "columns of x", [100, 4096, 32 * 65535]),
        ],
        ..COPY_SWAPPED.info
    },
    shapes: &[&[1, 1], &[1, 31], &[33, 1], &[32, 32], &[31, 33], &[7, 1000], &[100, 70]],
    plan: |plan, run| add_transpose(plan, run, "transpose", ""),
    source: &kernels::TRANSPOSE,
    ..COPY_SWAPPED
};

/// Through a tile in shared memory.
pub static TRANSPOSE_TILED: Operation = Operation {
    info: Info {
        name: "transpose_tiled",
        parent: Some("transpose"),
        change: "through a tile in shared memory: load and store both run along rows",
        ..TRANSPOSE.info
    },
    plan: |plan, run| add_transpose(plan, run, "transpose_tiled", "0"),
    ..TRANSPOSE
};

/// Through a tile whose rows are a bank apart.
pub static TRANSPOSE_PADDED: Operation = Operation {
    info: Info {
        name: "transpose_padded",
        parent: Some("transpose_tiled"),
        change: "one element more a row of the tile: a column touches every bank once",
        ..TRANSPOSE.info
    },
    plan: |plan, run| add_transpose(plan, run, "transpose_tiled", "1"),
    ..TRANSPOSE
};

fn add_transpose(plan: &mut Plan, run: &Run<'_>, name: &str, arguments: &str) -> Result<(), Error> {
    let (rows, columns) = (run.dim("R"), run.dim("C"));
    if run.sizes("x").len() > 2 {
        return Err(Error::Tensor {
            name: "x".into(),
            expected: "shape [R, C]".into(),
            got: format!("{} {:?}", run.dtype(), run.sizes("x")),
        });
    }
    let out = plan.output("out", run.dtype(), &[columns, rows]);
    let x = run.input(plan, "x");
    let kernel = run.kernel(plan, &run.instance(name, arguments))?;
    let grid = [rows.div_ceil(32) as u32, columns.div_ceil(32) as u32, 1];
    plan.launch(&kernel, Launch::new_3d(grid, [32, 8, 1]), arguments![x, out, rows, columns])
}
