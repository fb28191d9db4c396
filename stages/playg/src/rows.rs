//! Rows: softmax and layer norm over the last index, a block a row.

use lab_device::{DType, Launch};
use lab_harness::program::{Program, scalar};
use lab_harness::{Dim, Error, Info, Input, Output, Setting};
use lab_reference::playg as reference;

use crate::kernels;
use crate::operation::{Operation, Run, THREADS, kernel};

const LARGEST: usize = i32::MAX as usize;
const ROWS: Dim = Dim::new("R", "rows", [5, 16384, LARGEST]);
const COLUMNS: Dim = Dim::new("C", "columns", [300, 4096, LARGEST]);
/// What the registers of a block of 1024 threads hold.
const REGISTER_COLUMNS: Dim = Dim { max: 16384, ..COLUMNS };
const X: Input = Input::new("x", &["R..", "C"]);

/// Statistics in two passes.
pub static SOFTMAX: Operation = Operation {
    info: Info {
        stage: "playg",
        name: "softmax",
        family: "softmax",
        parent: None,
        change: "a block a row; the maximum in one pass, the sum in a second",
        dtypes: &[DType::F32, DType::F16, DType::BF16],
        dims: &[ROWS, COLUMNS],
        settings: &[],
        inputs: &[X],
        // exp and a quotient in f32, then one rounding.
        outputs: &[Output {
            name: "out",
            bounds: &[(DType::F32, 5e-7), (DType::F16, 5e-4), (DType::BF16, 4e-3)],
        }],
    },
    shapes: &[
        &[1, 1],
        &[1, 31],
        &[2, 33],
        &[3, 256],
        &[5, 257],
        &[2, 1000],
        &[2, 4096],
        &[300, 7],
        &[2, 10_001],
        &[1, 16384],
    ],
    large: &[8192, 4096],
    offset: 0.0,
    // Subtract, exponential, add, divide; a maximum is a comparison.
    flops: 4.0,
    elements: |dims| 2.0 * (dims.get("R") * dims.get("C")) as f64,
    cpu: None,
    reference: |run| reference::softmax(&run.values("x"), run.dim("C")),
    plan: |program, run| softmax(program, run, "softmax"),
};

/// Statistics in one pass.
pub static SOFTMAX_ONLINE: Operation = Operation {
    info: Info {
        name: "softmax_online",
        parent: Some("softmax"),
        change: "maximum and sum in one pass: the row is read twice, not three times",
        ..SOFTMAX.info
    },
    plan: |program, run| softmax(program, run, "softmax_online"),
    ..SOFTMAX
};

fn softmax(program: &mut Program, run: &Run<'_>, name: &str) -> Result<(), Error> {
    let (x, out) = run.x_and_out(program)?;
    let name = run.instance(name, &THREADS.to_string());
    let kernel = kernel(program, &kernels::SOFTMAX, &name)?;
    let launch = Launch::new(run.dim("R") as u32, THREADS);
    let columns = scalar(run.dim("C") as i32);
    program.launch(kernel, launch, [x.read(), out.write(), columns]);
    Ok(())
}

/// The row in registers.
pub static SOFTMAX_REGISTERS: Operation = Operation {
    info: Info {
        name: "softmax_registers",
        parent: Some("softmax"),
        change: "the row stays in registers: it is read once, 16 bytes a thread",
        dims: &[ROWS, REGISTER_COLUMNS],
        ..SOFTMAX.info
    },
    plan: |program, run| {
        let (x, out) = run.x_and_out(program)?;
        let (threads, arguments) = row_shape(run);
        let name = run.instance("softmax_registers", &arguments);
        let kernel = kernel(program, &kernels::SOFTMAX, &name)?;
        let launch = Launch::new(run.dim("R") as u32, threads);
        let columns = scalar(run.dim("C") as i32);
        program.launch(kernel, launch, [x.read(), out.write(), columns]);
        Ok(())
    },
    ..SOFTMAX
};

/// Layer norm.
pub static LAYERNORM: Operation = Operation {
    info: Info {
        name: "layernorm",
        family: "layernorm",
        change: "the row in registers; mean, then variance from the differences",
        dims: &[ROWS, REGISTER_COLUMNS],
        settings: &[Setting::number("eps", "added to the variance", "1e-5")],
        inputs: &[X, Input::new("gamma", &["C"]), Input::new("beta", &["C"])],
        outputs: &[Output {
            name: "out",
            bounds: &[(DType::F32, 5e-7), (DType::F16, 5e-4), (DType::BF16, 4e-3)],
        }],
        ..SOFTMAX.info
    },
    // A sum, a difference, a square and its sum, and three for the result.
    flops: 8.0,
    elements: |dims| (2.0 * dims.get("R") as f64 + 2.0) * dims.get("C") as f64,
    reference: |run| {
        let (x, gamma, beta) = (run.values("x"), run.values("gamma"), run.values("beta"));
        reference::layernorm(&x, &gamma, &beta, run.option("eps"))
    },
    plan: |program, run| {
        let (x, out) = run.x_and_out(program)?;
        let gamma = program.input(run.tensor("gamma"))?;
        let beta = program.input(run.tensor("beta"))?;
        let (threads, arguments) = row_shape(run);
        let name = run.instance("layernorm", &arguments);
        let kernel = kernel(program, &kernels::LAYERNORM, &name)?;
        let launch = Launch::new(run.dim("R") as u32, threads);
        let sizes = [scalar(run.dim("C") as i32), scalar(run.option("eps") as f32)];
        program.launch(
            kernel,
            launch,
            [x.read(), gamma.read(), beta.read(), out.write(), sizes[0], sizes[1]],
        );
        Ok(())
    },
    ..SOFTMAX
};

/// Threads a block, and the template arguments (threads, packs a thread, elements a pack) of the
/// first instantiation that holds the row: `WIDE` and `SINGLE` in the build script.
fn row_shape(run: &Run<'_>) -> (u32, String) {
    let columns = run.dim("C");
    let wide = columns.is_multiple_of(run.pack());
    let (pack, shapes): (usize, &[(u32, u32)]) = match wide {
        true => (run.pack(), &[(256, 1), (256, 2), (256, 4), (1024, 4)]),
        false => (1, &[(256, 1), (256, 4), (1024, 16)]),
    };
    let holds = |&&(threads, packs): &&(u32, u32)| (threads * packs) as usize * pack >= columns;
    let (threads, packs) = *shapes.iter().find(holds).expect("the columns were checked");
    (threads, format!("{threads}, {packs}, {pack}"))
}
