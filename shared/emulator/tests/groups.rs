//! Named barriers, registers that move between warpgroups, and matrices that are stored by a warp.

use std::sync::{Arc, LazyLock};

use crate::common::{Arrays, arg, checked, module, plain, run};
use lab_emulator::{Finding, Kind, LaunchError, Module, Options, Order};

const NAMES: [&str; 19] = [
    "handed<NONE>",
    "handed<NO_WAIT>",
    "handed<WRITES_EARLY>",
    "handed<OTHER_COUNT>",
    "handed<NOT_ALL>",
    "handed<NUMBER_0>",
    "budget<FITS>",
    "budget<TOO_MANY>",
    "budget<TOO_FEW_BACK>",
    "budget<A_WARP_MISSING>",
    "budget<WRONG_WAY>",
    "stored<1, 0>",
    "stored<2, 0>",
    "stored<4, 0>",
    "stored<1, 1>",
    "stored<2, 1>",
    "stored<4, 1>",
    "by_turns<IN_TURN>",
    "by_turns<EARLY>",
];

static CHECKED: LazyLock<Arc<Module>> = LazyLock::new(|| checked("groups.cu", &NAMES));
static PLAIN: LazyLock<Arc<Module>> = LazyLock::new(|| module("groups.cu", &NAMES));

const ORDERS: [Order; 5] =
    [Order::Forward, Order::Reverse, Order::Random(3), Order::Warps, Order::Starve(3)];

fn options() -> impl Iterator<Item = Options> {
    ORDERS.into_iter().map(|order| Options { order, threads: 1, ..Options::default() })
}

const ROUNDS: usize = 5;

fn handed(module: &Arc<Module>, fault: &str, options: &Options) -> (Result<(), LaunchError>, bool) {
    let mut arrays = Arrays::new();
    let values: Vec<i32> = (0..64 * ROUNDS as i32).collect();
    let (x, out) = (arrays.of(&values), arrays.unwritten::<i32>(values.len()));
    let (mut p, mut q, mut rounds) = (x, out, ROUNDS as i32);
    let mut arguments = [arg(&mut p), arg(&mut q), arg(&mut rounds)];
    let name = format!("handed<{fault}>");
    let outcome = run(module, &name, &plain(1, 128), &mut arguments, options);
    let turned = |i: usize| (i / 64 * 64 + 63 - i % 64) as i32;
    let right = arrays.read(out).into_iter().enumerate().all(|(i, got)| got == turned(i));
    (outcome, right)
}

fn budget(module: &Arc<Module>, which: &str, options: &Options) -> Result<Vec<i32>, LaunchError> {
    let mut arrays = Arrays::new();
    let out = arrays.unwritten::<i32>(384);
    let mut p = out;
    run(module, &format!("budget<{which}>"), &plain(1, 384), &mut [arg(&mut p)], options)?;
    Ok(arrays.read(out))
}

fn found<T: std::fmt::Debug>(outcome: Result<T, LaunchError>) -> Vec<Finding> {
    match outcome {
        Err(LaunchError::Kernel { findings, .. }) => findings.all,
        other => panic!("expected findings, got {other:?}"),
    }
}

#[test]
fn right_ones_are_right_in_every_order() {
    for options in options() {
        for module in [&*PLAIN, &*CHECKED] {
            let (outcome, right) = handed(module, "NONE", &options);
            outcome.unwrap_or_else(|e| panic!("{options:?}: {e}"));
            assert!(right, "{options:?}");
            let elected = budget(module, "FITS", &options).unwrap();
            assert_eq!(elected, [1; 384], "{options:?}");
        }
    }
}

#[test]
fn each_fault_is_found() {
    for options in options() {
        for (fault, kind) in [
            ("NO_WAIT", Kind::Race),
            ("WRITES_EARLY", Kind::Race),
            ("OTHER_COUNT", Kind::BadCollective),
            ("NOT_ALL", Kind::Deadlock),
            ("NUMBER_0", Kind::BadCollective),
        ] {
            // Those who write run so far ahead that they fill the barrier alone, and nobody comes to the last one.
            let starved = fault == "WRITES_EARLY" && matches!(options.order, Order::Starve(_));
            let kind = if starved { Kind::Deadlock } else { kind };
            let all = found(handed(&CHECKED, fault, &options).0);
            assert!(all.iter().any(|f| f.kind == kind), "{fault}, {options:?}: {all:?}");
        }
        for (which, kind, said) in [
            ("TOO_MANY", Kind::Deadlock, "ask for 248 registers"),
            ("TOO_FEW_BACK", Kind::Deadlock, "240 registers, each has 168; 8192 of 64512 are free"),
            ("A_WARP_MISSING", Kind::Deadlock, "96 of 128 threads ask for 24 registers"),
            ("WRONG_WAY", Kind::BadCollective, "registers_increase to 24, fewer than the 168"),
        ] {
            let all = found(budget(&CHECKED, which, &options));
            let named = |f: &Finding| f.kind == kind && f.to_string().contains(said);
            assert!(all.iter().any(named), "{which}, {options:?}: {all:?}");
        }
    }
}

#[test]
fn what_is_missing_at_a_barrier_is_told() {
    let all = found(handed(&CHECKED, "NOT_ALL", &Options::default()).0);
    let said = all[0].to_string();
    assert!(said.contains("barrier 1: 96 of 128 threads have come"), "{said}");
    assert!(said.contains("bar.sync"), "{said}");
}

/// Of a word the low half is the left neighbour, and lane l has row l / 4 of each matrix.
#[test]
fn matrices_are_stored_by_rows_or_by_columns() {
    let of = |matrix: usize, row: usize, column: usize| (matrix * 64 + row * 8 + column) as u32;
    let word = |lane: usize, m: usize| {
        let (row, column) = (lane / 4, lane % 4 * 2);
        of(m, row, column) | of(m, row, column + 1) << 16
    };
    let fragments: Vec<u32> = (0..128).map(|i| word(i / 4, i % 4)).collect();
    for (count, transposed) in [(1, 0), (2, 0), (4, 0), (1, 1), (2, 1), (4, 1)] {
        let mut arrays = Arrays::new();
        let (from, out) = (arrays.of(&fragments), arrays.unwritten::<u32>(64 * count));
        let (mut p, mut q) = (from, out);
        let name = format!("stored<{count}, {transposed}>");
        let mut arguments = [arg(&mut p), arg(&mut q)];
        run(&CHECKED, &name, &plain(1, 32), &mut arguments, &Options::default()).unwrap();
        for (i, got) in arrays.read(out).into_iter().enumerate() {
            let (m, row, column) = (i / 64, i / 8 % 8, i % 8);
            let expected = if transposed == 1 { of(m, column, row) } else { of(m, row, column) };
            assert_eq!(got, expected, "{name}: {i}");
        }
    }
}

/// Whether each row came out backwards.
fn by_turns(module: &Arc<Module>, claim: &str, order: Order) -> (Result<(), LaunchError>, bool) {
    const CHUNKS: usize = 20;
    let mut arrays = Arrays::new();
    let values: Vec<i32> = (0..32 * CHUNKS as i32).collect();
    let (x, out) = (arrays.of(&values), arrays.unwritten::<i32>(values.len()));
    let (mut p, mut q, mut chunks) = (x, out, CHUNKS as i32);
    let mut arguments = [arg(&mut p), arg(&mut q), arg(&mut chunks)];
    let options = Options { order, threads: 1, ..Options::default() };
    let name = format!("by_turns<{claim}>");
    let outcome = run(module, &name, &plain(1, 5 * 32), &mut arguments, &options);
    let turned = |i: usize| (i / 32 * 32 + 31 - i % 32) as i32;
    let right = arrays.read(out).into_iter().enumerate().all(|(i, got)| got == turned(i));
    (outcome, right)
}

/// A consumer that gets its turn like everybody else keeps up with those who bring: only where it lags is
/// what it reads overwritten.
#[test]
fn a_place_that_is_claimed_too_early_shows_where_its_user_starves() {
    let fair = ORDERS.into_iter().filter(|order| !matches!(order, Order::Starve(_)));
    for order in fair.clone().chain((0..20).map(Order::Starve)) {
        for module in [&*PLAIN, &*CHECKED] {
            let (outcome, right) = by_turns(module, "IN_TURN", order);
            outcome.unwrap_or_else(|e| panic!("{order:?}: {e}"));
            assert!(right, "{order:?}");
        }
    }
    for order in fair {
        let (outcome, right) = by_turns(&PLAIN, "EARLY", order);
        assert!(outcome.is_ok() && right, "{order:?}: the other orders find it, too");
    }
    assert!(by_turns(&CHECKED, "EARLY", Order::Warps).0.is_ok(), "not even as a race");
    let mut wrong = 0;
    for seed in 0..20 {
        let (outcome, right) = by_turns(&PLAIN, "EARLY", Order::Starve(seed));
        wrong += usize::from(outcome.is_err() || !right);
        let all = found(by_turns(&CHECKED, "EARLY", Order::Starve(seed)).0);
        assert!(all.iter().any(|f| f.kind == Kind::Race), "seed {seed}: {all:?}");
    }
    assert!(wrong >= 10, "with {wrong} of 20 seeds");
}
