//! wgmma: what its kernels compute, and what the checks say of those that are wrong.

use std::sync::{Arc, LazyLock};

use crate::common::{Arrays, arg, checked, module, plain, run};
use half::f16;
use lab_emulator::{Finding, Kind, Landing, LaunchError, Module, Options, Order};

const FAULTS: [&str; 9] = [
    "product<NONE>",
    "product<NO_FENCE>",
    "product<NO_WAIT>",
    "product<NO_COMMIT>",
    "product<NO_PROXY_FENCE>",
    "product<REFILLED>",
    "product<NOT_ALL>",
    "product<OTHER_ORDER>",
    "product<EXIT>",
];

static CHECKED: LazyLock<Arc<Module>> = LazyLock::new(|| checked("wgmma.cu", &FAULTS));
static PLAIN: LazyLock<Arc<Module>> = LazyLock::new(|| module("wgmma.cu", &FAULTS));

fn product(
    module: &Arc<Module>,
    fault: &str,
    options: &Options,
) -> (Result<(), LaunchError>, bool) {
    let mut arrays = Arrays::new();
    let value = |i: usize| (i * 7 % 5) as f32 - 2.0;
    let half = |i: usize| f16::from_f32(value(i));
    let a: Vec<f16> = (0..64 * 64).map(half).collect();
    let b: Vec<f16> = (0..8 * 64).map(|i| half(3 * i + 1)).collect();
    let (a, b, c) = (arrays.of(&a), arrays.of(&b), arrays.unwritten::<f32>(64 * 8));
    let (mut pa, mut pb, mut pc) = (a, b, c);
    let mut arguments = [arg(&mut pa), arg(&mut pb), arg(&mut pc)];
    let outcome =
        run(module, &format!("product<{fault}>"), &plain(1, 128), &mut arguments, options);
    let sum = |i: usize| -> f32 {
        (0..64).map(|k| value(i / 8 * 64 + k) * value(3 * (i % 8 * 64 + k) + 1)).sum()
    };
    let right = arrays.read(c).into_iter().enumerate().all(|(i, got)| got == sum(i));
    (outcome, right)
}

fn options() -> impl Iterator<Item = Options> {
    let orders = [Order::Forward, Order::Reverse, Order::Random(3), Order::Warps, Order::Starve(1)];
    orders.into_iter().flat_map(|order| {
        let copies = [Landing::Late, Landing::Early, Landing::Random(1)];
        copies.map(|copies| Options { order, copies, ..Options::default() })
    })
}

#[test]
fn a_right_product_is_right_whenever_it_is_made() {
    for options in options() {
        for module in [&*PLAIN, &*CHECKED] {
            let (outcome, right) = product(module, "NONE", &options);
            outcome.unwrap_or_else(|e| panic!("{options:?}: {e}"));
            assert!(right, "{options:?}");
        }
    }
}

#[test]
fn each_fault_is_found_in_every_order() {
    for (fault, kind) in [
        ("NO_FENCE", Kind::UnfencedWgmma),
        ("NO_WAIT", Kind::CopyInFlight),
        ("NO_COMMIT", Kind::CopyInFlight),
        ("NO_PROXY_FENCE", Kind::UnfencedProxy),
        ("REFILLED", Kind::CopyInFlight),
        ("NOT_ALL", Kind::Deadlock),
        ("OTHER_ORDER", Kind::BadCollective),
        ("EXIT", Kind::CopyInFlight),
    ] {
        for options in options() {
            let finding: Finding = match product(&CHECKED, fault, &options).0 {
                Err(LaunchError::Kernel { findings, .. }) => findings.all[0].clone(),
                other => panic!("{fault}, {options:?}: expected findings, got {other:?}"),
            };
            // Of two unordered accesses, the one that the product makes may come second.
            let same = finding.kind == kind || (fault, finding.kind) == ("REFILLED", Kind::Race);
            assert!(same, "{fault}, {options:?}: {finding}");
        }
    }
}
