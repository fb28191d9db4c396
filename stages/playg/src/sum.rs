//! The sum of all elements, four ways.

use lab_device::DType;
use lab_harness::program::{Program, scalar};
use lab_harness::{Dim, Error, Info, Input, Output};
use lab_reference::playg as reference;

use crate::kernels;
use crate::operation::{Operation, Run, THREADS, grid_stride, kernel};

/// Blocks by a tree in shared memory.
pub static SUM_TREE: Operation = Operation {
    info: Info {
        stage: "playg",
        name: "sum_tree",
        family: "sum",
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
        }],
    },
    // 196,608: on the emulator, the last pack that is read ahead is the last there is.
    shapes: &[&[1], &[31], &[33], &[1000], &[4099], &[196_608], &[300_001]],
    large: &[1 << 25],
    // Around 4, not around 0: where a sum cancels, its relative error says nothing.
    offset: 4.0,
    flops: 1.0,
    elements: |dims| dims.get("N") as f64,
    cpu: None,
    reference: |run| vec![reference::sum(&run.values("x"))],
    plan: |program, run| two_launches(program, run, "sum_tree"),
};

/// Blocks by shuffles.
pub static SUM_SHUFFLE: Operation = Operation {
    info: Info {
        name: "sum_shuffle",
        parent: Some("sum_tree"),
        change: "a block by warp shuffles: two barriers, not nine",
        ..SUM_TREE.info
    },
    plan: |program, run| two_launches(program, run, "sum_shuffle"),
    ..SUM_TREE
};

fn two_launches(program: &mut Program, run: &Run<'_>, name: &str) -> Result<(), Error> {
    let threads = THREADS.to_string();
    let first = kernel(program, &kernels::SUM, &run.instance(name, &threads))?;
    let second = format!("{name}<{}, {threads}>", run.sum_type().cpp());
    let second = kernel(program, &kernels::SUM, &second)?;
    let n = run.dim("N");
    let launch = grid_stride(program.device(), n.div_ceil(run.pack()));
    let blocks = launch.grid[0];
    let x = program.input(run.tensor("x"))?;
    let partial = program.scratch(run.sum_type(), blocks as usize)?;
    let out = program.output("out", run.sum_type(), &[])?;
    program.launch(first, launch, [x.read(), partial.write(), scalar(n as u64)]);
    let one_block = grid_stride(program.device(), 1);
    program.launch(second, one_block, [partial.read(), out.write(), scalar(u64::from(blocks))]);
    Ok(())
}

/// Blocks by an atomic.
pub static SUM_ATOMIC: Operation = Operation {
    info: Info {
        name: "sum_atomic",
        parent: Some("sum_shuffle"),
        change: "the blocks by an atomic: one launch, but the last digits are chance",
        // A thousand blocks' sums are added one after the other, not by a tree: the roundings of
        // that chain add up like a random walk, √1056 · 0.5 units of roundoff.
        outputs: &[Output {
            name: "out",
            bounds: &[
                (DType::F32, 2e-6),
                (DType::F64, 4e-15),
                (DType::F16, 2e-6),
                (DType::BF16, 2e-6),
            ],
        }],
        ..SUM_TREE.info
    },
    plan: |program, run| {
        let name = run.instance("sum_atomic", &THREADS.to_string());
        let kernel = kernel(program, &kernels::SUM, &name)?;
        let n = run.dim("N");
        let x = program.input(run.tensor("x"))?;
        let out = program.output("out", run.sum_type(), &[])?;
        let launch = grid_stride(program.device(), n.div_ceil(run.pack()));
        program.zero(out);
        program.launch(kernel, launch, [x.read(), out.write(), scalar(n as u64)]);
        Ok(())
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
    plan: |program, run| {
        let kernel = kernel(program, &kernels::SUM, &run.instance("sum", &THREADS.to_string()))?;
        let n = run.dim("N");
        let resident = kernel.resident_blocks(THREADS, 0)?;
        let mut launch = grid_stride(program.device(), n.div_ceil(run.pack())).cooperative();
        launch.grid[0] = launch.grid[0].min(resident);
        let x = program.input(run.tensor("x"))?;
        let partial = program.scratch(run.sum_type(), launch.grid[0] as usize)?;
        let out = program.output("out", run.sum_type(), &[])?;
        program.launch(kernel, launch, [x.read(), partial.write(), out.write(), scalar(n as u64)]);
        Ok(())
    },
    ..SUM_TREE
};
