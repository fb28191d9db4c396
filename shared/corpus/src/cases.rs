//! The table. One module a kernel file.

mod beyond;
mod blocks;
mod bulk;
mod copies;
mod counted;
mod formal;
mod init;
mod instructions;
mod locks;
mod mbarrier;
mod memory;
mod order;
mod race;
mod shared;
mod sync;
mod tensor;
mod tensor_copy;
mod wgmma;

use lab_device::{KernelSource, Launch};

pub use beyond::cases_beyond_sanitizer;
pub use counted::counted;
pub use formal::formal;
pub use instructions::instructions;

use crate::{Arg, Case, Kind, Verdict};

/// Every case, file by file, in the order in which the kernels are written there.
pub fn cases() -> Vec<Case> {
    let files = [memory::cases, shared::cases, init::cases, race::cases, blocks::cases];
    let more = [sync::cases, order::cases, locks::cases, copies::cases, tensor::cases];
    let newest = [mbarrier::cases, bulk::cases, wgmma::cases, tensor_copy::cases];
    files.into_iter().chain(more).chain(newest).flat_map(|cases| cases()).collect()
}

/// Right kernels that copy in bulk or multiply by wgmma: those whose counters are held against Nsight
/// Compute, whole boxes and such as reach beyond their tensor.
const ASYNCHRONOUS: [&str; 16] = [
    "bulk_several_groups",
    "bulk_two_stages",
    "wgmma_two_groups",
    "wgmma_fragments",
    "wgmma_set_meanwhile",
    "wgmma_groups_of_same_sums",
    "wgmma_scaled_between",
    "wgmma_chain",
    "tensor_row_beyond_ends",
    "tensor_cut_at_corners",
    "tensor_of_three_dimensions",
    "tensor_every_second_row",
    "tensor_nan_outside",
    "tensor_expect_after_load",
    "tensor_swizzled<32>",
    "tensor_swizzled<64>",
];

/// The kernels whose bulk copies and operands of wgmma are counted here and by Nsight Compute.
pub fn asynchronous() -> Vec<Case> {
    let cases =
        [bulk::cases, wgmma::cases, tensor_copy::cases].into_iter().flat_map(|cases| cases());
    cases.filter(|case| ASYNCHRONOUS.contains(&case.name)).collect()
}

/// Where the cases of a module come from.
#[derive(Clone, Copy)]
struct File(&'static KernelSource);

impl File {
    fn case<const N: usize>(
        self,
        name: &'static str,
        launch: Launch,
        arguments: [Arg; N],
        verdict: Verdict,
    ) -> Case {
        let arguments = arguments.into();
        Case { name, source: self.0, launch, arguments, verdict, hangs: false }
    }

    fn bug<const N: usize>(
        self,
        kind: Kind,
        name: &'static str,
        launch: Launch,
        arguments: [Arg; N],
    ) -> Case {
        self.case(name, launch, arguments, Verdict::Bug(kind))
    }

    fn formal<const N: usize, const M: usize>(
        self,
        kind: Kind,
        name: &'static str,
        launch: Launch,
        arguments: [Arg; N],
        expect: [Vec<f64>; M],
    ) -> Case {
        self.case(name, launch, arguments, Verdict::Formal { kind, expect: expect.into() })
    }

    fn right<const N: usize, const M: usize>(
        self,
        name: &'static str,
        launch: Launch,
        arguments: [Arg; N],
        expect: [Vec<f64>; M],
    ) -> Case {
        self.case(name, launch, arguments, Verdict::Correct { expect: expect.into() })
    }
}

impl Case {
    fn may_hang(self) -> Self {
        Self { hangs: true, ..self }
    }
}

/// A launch of so many blocks of so many threads.
fn grid(blocks: u32, threads: u32) -> Launch {
    Launch::new(blocks, threads)
}

/// `f(0)`, `f(1)`, ...
fn of(len: usize, f: impl Fn(usize) -> usize) -> Vec<f64> {
    (0..len).map(|i| f(i) as f64).collect()
}

/// 0, 1, 2, ...
fn ramp(len: usize) -> Vec<f64> {
    of(len, |i| i)
}

/// ..., 2, 1, 0
fn falling(len: usize) -> Vec<f64> {
    of(len, |i| len - 1 - i)
}

fn zeros(len: usize) -> Vec<f64> {
    vec![0.0; len]
}
