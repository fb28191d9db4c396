//! The sum of all elements, four ways.

use lab_device::DType;
use lab_harness::compare::unit;
use lab_harness::{Dim, Error, Info, Input, Output, Plan, arguments};
use lab_reference::playg as reference;

use crate::kernels;
use crate::operation::{Formula, Operation, Run, THREADS, grid_stride};

/// The sum of all elements. They lie around 4, not around 0: where a sum cancels, its relative error
/// says nothing.
static SUMS: Formula = Formula {
    name: "sum",
    offset: 4.0,
    flops: 1.0,
    elements: |dims| [dims.get("N") as f64; 2],
    reference: |of| vec![reference::sum(&of.values("x"))],
    magnitude: |of| vec![reference::sum(&of.absolute("x"))],
};

/// Blocks by a tree in shared memory.
pub static SUM_TREE: Operation = Operation {
    info: Info {
        stage: "playg",
        name: "sum_tree",
        family: &SUMS,
        parent: None,
        change: "a block by a tree in shared memory; the blocks by a second launch",
        dtypes: &[DType::F32, DType::F64, DType::F16, DType::BF16],
        dims: &[Dim::new("N", "elements", [10_000, 1 << 26, 1 << 40])],
        settings: &[],
        inputs: &[Input::new("x", &["N.."])],
        // f16 and bf16 are summed in f32, and `out` is f32: a sum of halves soon leaves f16's
        // range. Where there is one addend there is no error at all.
        outputs: &[Output {
            name: "out",
            bounds: &[
                (DType::F32, 4e-7),
                (DType::F64, 5e-16),
                (DType::F16, 4e-7),
                (DType::BF16, 4e-7),
            ],
            elements: &[
                (DType::F32, 3.0 * unit::F32),
                (DType::F64, 3.0 * unit::F64),
                (DType::F16, 3.0 * unit::F32),
                (DType::BF16, 3.0 * unit::F32),
            ],
        }],
    },
    // 196,608: on the emulator, the last pack that is read ahead is the last there is.
    shapes: &[&[1], &[31], &[33], &[1000], &[4099], &[196_608], &[300_001]],
    large: &[1 << 25],
    cpu: None,
    source: &kernels::SUM,
    plan: |plan, run| add_two_launches(plan, run, "sum_tree"),
};

/// Blocks by shuffles.
pub static SUM_SHUFFLE: Operation = Operation {
    info: Info {
        name: "sum_shuffle",
        parent: Some("sum_tree"),
        change: "a block by warp shuffles: two barriers, not nine",
        ..SUM_TREE.info
    },
    plan: |plan, run| add_two_launches(plan, run, "sum_shuffle"),
    ..SUM_TREE
};

fn add_two_launches(plan: &mut Plan, run: &Run<'_>, name: &str) -> Result<(), Error> {
    let threads = THREADS.to_string();
    let first = run.kernel(plan, &run.instance(name, &threads))?;
    let second = format!("{name}<{}, {threads}>", run.sum_type().cpp());
    let second = run.kernel(plan, &second)?;
    let n = run.dim("N");
    let launch = grid_stride(plan.device(), n.div_ceil(run.pack()));
    let blocks = launch.grid[0];
    let x = run.input(plan, "x");
    let partial = plan.scratch(run.sum_type(), blocks as usize);
    let out = plan.output("out", run.sum_type(), &[]);
    plan.launch(&first, launch, arguments![x, partial, n])?;
    let one_block = grid_stride(plan.device(), 1);
    plan.launch(&second, one_block, arguments![x: partial, partial: out, n: blocks])
}

/// Blocks by an atomic.
pub static SUM_ATOMIC: Operation = Operation {
    info: Info {
        name: "sum_atomic",
        parent: Some("sum_shuffle"),
        change: "the blocks by an atomic: one launch, but the last digits are chance",
        // A thousand blocks' sums are added one after the other, not by a tree: the roundings of
        // that chain add up like a random walk, √1056 · 0.5 units of roundoff, and twice that now and then.
        outputs: &[Output {
            name: "out",
            bounds: &[
                (DType::F32, 2e-6),
                (DType::F64, 4e-15),
                (DType::F16, 2e-6),
                (DType::BF16, 2e-6),
            ],
            elements: &[
                (DType::F32, 34.0 * unit::F32),
                (DType::F64, 34.0 * unit::F64),
                (DType::F16, 34.0 * unit::F32),
                (DType::BF16, 34.0 * unit::F32),
            ],
        }],
        ..SUM_TREE.info
    },
    plan: |plan, run| {
        let name = run.instance("sum_atomic", &THREADS.to_string());
        let kernel = run.kernel(plan, &name)?;
        let n = run.dim("N");
        let x = run.input(plan, "x");
        let out = plan.output("out", run.sum_type(), &[]);
        let launch = grid_stride(plan.device(), n.div_ceil(run.pack()));
        plan.zero(out);
        plan.launch(&kernel, launch, arguments![x, out, n])
    },
    ..SUM_TREE
};

/// Blocks by a grid-wide sync.
pub static SUM: Operation = Operation {
    info: Info {
        name: "sum",
        parent: Some("sum_shuffle"),
        change: "the blocks by a grid-wide sync: one launch, the same digits every time",
        ..SUM_TREE.info
    },
    plan: |plan, run| {
        let kernel = run.kernel(plan, &run.instance("sum", &THREADS.to_string()))?;
        let n = run.dim("N");
        let resident = kernel.resident_blocks(THREADS, 0)?;
        let mut launch = grid_stride(plan.device(), n.div_ceil(run.pack())).cooperative();
        launch.grid[0] = launch.grid[0].min(resident);
        let x = run.input(plan, "x");
        let partial = plan.scratch(run.sum_type(), launch.grid[0] as usize);
        let out = plan.output("out", run.sum_type(), &[]);
        plan.launch(&kernel, launch, arguments![x, partial, out, n])
    },
    ..SUM_TREE
};
