//! A corpus of kernels with one planted bug each, and of right kernels that look dangerous.
//!
//! Whatever finds bugs is held against it: it must find each planted one and say nothing about the
//! rest. [`cases()`] is the table, [`run()`] runs a case on a device, and [`lines`] says which lines of
//! its file a report may name: those that end in `// BUG name`, or in `// FORMAL name` where GPUs do what is meant
//! though nothing promises it.
//!
//! A case is wrong by CUDA's rules, whether or not a run of it gives wrong numbers. One with
//! [`Case::hangs`] may never end on a GPU; one of [`Kind::Memory`] may end the process's use of
//! the GPU. Run those in a process of their own, with a time limit.

mod cases;
mod descriptors;
mod judge;
pub mod maps;
pub mod records;
mod run;

pub use cases::{asynchronous, cases, cases_beyond_sanitizer, counted, formal, instructions};
pub use descriptors::{PRODUCTS, descriptors};
pub use judge::{Judgement, emulator, judge};
pub use run::run;

use lab_device::{DType, KernelSource, Launch, TensorMap};
use serde::Deserialize;

/// The kernel files.
#[allow(missing_docs)] // generated: one object a file
pub mod kernels {
    include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
}

/// What kind of bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
pub enum Kind {
    /// An access outside of a buffer or array, or at an address that is not a multiple of its size.
    Memory,
    /// A read of what was never written.
    Init,
    /// Two accesses of one place, one of them a write, that nothing orders.
    Race,
    /// A barrier or warp collective that not all come to whom it waits for.
    Sync,
}

/// What is true of a case.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// It has this bug.
    Bug(Kind),
    /// It has this bug by the letter alone: GPUs do what is meant.
    Formal {
        /// Which.
        kind: Kind,
        /// As [`Verdict::Correct`] has it, on GPUs.
        expect: Vec<Vec<f64>>,
    },
    /// It is right.
    Correct {
        /// What the writable buffers hold in the end, in the order of the arguments, on any device
        /// and in any order of threads and blocks. NaN: nobody writes it.
        expect: Vec<Vec<f64>>,
    },
}

/// One argument of a launch. Values are given as f64, each exact in its type.
#[derive(Clone, Debug, PartialEq)]
pub enum Arg {
    /// A buffer that is only read.
    In(DType, Vec<f64>),
    /// A writable buffer of so many elements to which nothing was written: `Device::buffer`.
    Out(DType, usize),
    /// A writable buffer that holds these values before.
    InOut(DType, Vec<f64>),
    /// A tensor map of a buffer that holds these values, by which the kernel only loads.
    Loaded(Vec<f64>, TensorMap),
    /// A tensor map of a buffer of so many elements to which nothing was written, by which the kernel
    /// stores.
    Stored(usize, TensorMap),
    /// `int`.
    I32(i32),
    /// `unsigned`.
    U32(u32),
    /// `long long`.
    I64(i64),
}

/// A kernel, how it is launched, and what is true of it.
#[derive(Clone, Debug)]
pub struct Case {
    /// The kernel's name, for templates with its arguments; no two cases have the same.
    pub name: &'static str,
    /// The file it is in.
    pub source: &'static KernelSource,
    /// Grid, block, dynamic shared memory, cooperative or not.
    pub launch: Launch,
    /// In the kernel's order.
    pub arguments: Vec<Arg>,
    /// Bug or not.
    pub verdict: Verdict,
    /// May never end on a GPU.
    pub hangs: bool,
}

impl Case {
    /// The kind of its bug; `None` where it is right, or wrong by the letter alone.
    pub fn bug(&self) -> Option<Kind> {
        match self.verdict {
            Verdict::Bug(kind) => Some(kind),
            Verdict::Formal { .. } | Verdict::Correct { .. } => None,
        }
    }

    /// Whether these outputs are what a right case must compute; nothing is said of a bug's.
    pub fn holds(&self, outputs: &[Vec<f64>]) -> bool {
        let (Verdict::Correct { expect } | Verdict::Formal { expect, .. }) = &self.verdict else {
            return true;
        };
        let same = |(got, expected): (&Vec<f64>, &Vec<f64>)| {
            let pairs = || got.iter().zip(expected);
            got.len() == expected.len() && pairs().all(|(g, e)| g == e || e.is_nan())
        };
        outputs.len() == expect.len() && outputs.iter().zip(expect).all(same)
    }
}

/// The lines of the case's file that are marked as its bug, counted from 1. Either of two lines
/// that race, or of two places where threads wait for each other, may be the one that is reported.
pub fn lines(case: &Case) -> Vec<usize> {
    let numbered = case.source.source.lines().zip(1..);
    numbered.filter(|(text, _)| mark(text) == Some(case.name)).map(|(_, number)| number).collect()
}

/// The name behind a line's `// BUG` or `// FORMAL`.
pub fn mark(line: &str) -> Option<&str> {
    let marked = ["// BUG ", "// FORMAL "].into_iter().find_map(|mark| line.split_once(mark))?;
    Some(marked.1.trim_end())
}
