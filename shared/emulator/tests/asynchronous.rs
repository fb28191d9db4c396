//! Asynchronous copies and mbarriers: what their kernels compute whenever the copies land, and what the
//! checks say of those that are wrong.

use std::sync::{Arc, LazyLock};
use std::time::Instant;

use crate::common::{Arrays, arg, checked, module, plain, run};
use lab_emulator::{Config, Finding, Kind, Landing, LaunchError, Module, Options, Order};

const NAMES: [&str; 20] = [
    "met<NONE>",
    "met<NO_WAIT>",
    "doubled<NONE>",
    "doubled<NO_WAIT>",
    "doubled<WRONG_PARITY>",
    "doubled<TOO_FEW_BYTES>",
    "doubled<TOO_MANY_BYTES>",
    "doubled<NO_ARRIVAL>",
    "all_to_all<RIGHT>",
    "all_to_all<BLOCK_SCOPE>",
    "all_to_all<ONE_BOX>",
    "answered<ANSWERED>",
    "answered<UNASKED>",
    "answered<ONE_MORE>",
    "through_bulk<NONE>",
    "through_bulk<READ_ALONE>",
    "stored_then_loaded<NONE>",
    "stored_then_loaded<SHARED_FENCE>",
    "through_bulk<NO_FENCE>",
    "through_bulk<NO_WAIT>",
];

static CHECKED: LazyLock<Arc<Module>> = LazyLock::new(|| checked("asynchronous.cu", &NAMES));
static PLAIN: LazyLock<Arc<Module>> = LazyLock::new(|| module("asynchronous.cu", &NAMES));

const ORDERS: [Order; 5] =
    [Order::Forward, Order::Reverse, Order::Random(3), Order::Warps, Order::Starve(3)];
const LANDINGS: [Landing; 4] =
    [Landing::Late, Landing::Early, Landing::Random(1), Landing::Random(2)];

fn options() -> impl Iterator<Item = Options> {
    ORDERS.into_iter().flat_map(|order| {
        LANDINGS.map(|copies| Options { order, copies, threads: 2, ..Options::default() })
    })
}

const TILES: usize = 5;

fn doubled(
    module: &Arc<Module>,
    fault: &str,
    options: &Options,
) -> (Result<(), LaunchError>, bool) {
    let mut arrays = Arrays::new();
    let values: Vec<f32> = (0..64 * TILES).map(|v| v as f32).collect();
    let (x, out) = (arrays.of(&values), arrays.unwritten::<f32>(values.len()));
    let (mut p, mut q, mut tiles) = (x, out, TILES as i32);
    let mut arguments = [arg(&mut p), arg(&mut q), arg(&mut tiles)];
    let outcome = run(module, &format!("doubled<{fault}>"), &plain(1, 64), &mut arguments, options);
    let turned = |i: usize| 2.0 * (i / 64 * 64 + 63 - i % 64) as f32;
    let right = arrays.read(out).into_iter().enumerate().all(|(i, got)| got == turned(i));
    (outcome, right)
}

fn all_to_all(
    module: &Arc<Module>,
    fault: &str,
    options: &Options,
) -> (Result<(), LaunchError>, bool) {
    let (clusters, size, rounds) = (2, 4, 6);
    let mut arrays = Arrays::new();
    let out = arrays.unwritten::<f32>(32 * clusters * size);
    let (mut p, mut n) = (out, rounds);
    let mut arguments = [arg(&mut p), arg(&mut n)];
    let config = Config { cluster: size as u32, ..plain((clusters * size) as u32, 32) };
    let name = format!("all_to_all<{fault}>");
    let outcome = run(module, &name, &config, &mut arguments, options);
    let sum: i32 = (0..size as i32).map(|rank| rank + rounds - 1).sum();
    let right = arrays.read(out).into_iter().all(|got| got == sum as f32);
    (outcome, right)
}

fn answered(
    module: &Arc<Module>,
    fault: &str,
    options: &Options,
) -> (Result<(), LaunchError>, bool) {
    let mut arrays = Arrays::new();
    let out = arrays.unwritten::<f32>(32 * 4);
    let mut p = out;
    let config = Config { cluster: 4, ..plain(4, 32) };
    let name = format!("answered<{fault}>");
    let outcome = run(module, &name, &config, &mut [arg(&mut p)], options);
    let right = arrays.read(out).into_iter().all(|got| got == 1.0);
    (outcome, right)
}

fn met(module: &Arc<Module>, fault: &str, options: &Options) -> (Result<(), LaunchError>, bool) {
    let mut arrays = Arrays::new();
    let values: Vec<f32> = (0..128).map(|v| v as f32).collect();
    let (x, out) = (arrays.of(&values), arrays.unwritten::<f32>(values.len()));
    let (mut p, mut q) = (x, out);
    let mut arguments = [arg(&mut p), arg(&mut q)];
    let config = Config { cluster: 2, ..plain(2, 64) };
    let outcome = run(module, &format!("met<{fault}>"), &config, &mut arguments, options);
    let right = arrays.read(out).into_iter().enumerate().all(|(i, got)| got == 2.0 * i as f32);
    (outcome, right)
}

fn through_bulk(
    module: &Arc<Module>,
    fault: &str,
    options: &Options,
) -> (Result<(), LaunchError>, bool) {
    in_tiles(module, &format!("through_bulk<{fault}>"), options)
}

fn stored_then_loaded(
    module: &Arc<Module>,
    fault: &str,
    options: &Options,
) -> (Result<(), LaunchError>, bool) {
    in_tiles(module, &format!("stored_then_loaded<{fault}>"), options)
}

/// Each element becomes one more than its index.
fn in_tiles(
    module: &Arc<Module>,
    name: &str,
    options: &Options,
) -> (Result<(), LaunchError>, bool) {
    let mut arrays = Arrays::new();
    let values: Vec<f32> = (0..64 * TILES).map(|v| v as f32).collect();
    let x = arrays.of(&values);
    let (mut p, mut tiles) = (x, TILES as i32);
    let mut arguments = [arg(&mut p), arg(&mut tiles)];
    let outcome = run(module, name, &plain(1, 64), &mut arguments, options);
    let right = arrays.read(x).into_iter().enumerate().all(|(i, got)| got == (i + 1) as f32);
    (outcome, right)
}

type Run = fn(&Arc<Module>, &str, &Options) -> (Result<(), LaunchError>, bool);

#[test]
fn right_kernels_are_right_whenever_copies_land() {
    let kernels: [(Run, &str); 7] = [
        (met, "NONE"),
        (doubled, "NONE"),
        (all_to_all, "RIGHT"),
        (answered, "ANSWERED"),
        (through_bulk, "NONE"),
        (through_bulk, "READ_ALONE"),
        (stored_then_loaded, "NONE"),
    ];
    for (run, name) in kernels {
        for options in options() {
            for module in [&*PLAIN, &*CHECKED] {
                let (outcome, right) = run(module, name, &options);
                outcome.unwrap_or_else(|e| panic!("{name}, {options:?}: {e}"));
                assert!(right, "{name}, {options:?}");
            }
        }
    }
}

fn finding(run: Run, fault: &str, options: &Options) -> Finding {
    match run(&CHECKED, fault, options).0 {
        Err(LaunchError::Kernel { findings, .. }) => findings.all[0].clone(),
        other => panic!("{fault}, {options:?}: expected findings, got {other:?}"),
    }
}

/// Found in every order, and whenever copies land.
fn found(run: Run, fault: &str, kinds: &[Kind]) {
    for options in options() {
        let finding = finding(run, fault, &options);
        assert!(kinds.contains(&finding.kind), "{fault}, {options:?}: {finding}");
    }
}

#[test]
fn what_nobody_waited_for_is_found_even_if_it_has_landed() {
    found(doubled, "NO_WAIT", &[Kind::Race, Kind::CopyInFlight]);
    // If what is not expected lands last, the phase is over before; if it lands first, it never is.
    found(doubled, "TOO_FEW_BYTES", &[Kind::Race, Kind::CopyInFlight, Kind::Deadlock]);
    found(all_to_all, "BLOCK_SCOPE", &[Kind::Race]);
    found(all_to_all, "ONE_BOX", &[Kind::Race, Kind::CopyInFlight]);
}

/// Who has seen a phase complete knows that the arrivals have come, whatever order they asked for; of the next phase nobody
/// has.
#[test]
fn a_block_may_leave_behind_the_arrivals_that_it_waited_for() {
    found(answered, "UNASKED", &[Kind::AbsentBlock]);
    found(answered, "ONE_MORE", &[Kind::AbsentBlock]);
}

/// Nobody waits for it, and that the blocks have met in between does not make up for that.
#[test]
fn what_is_on_its_way_while_blocks_meet_may_be_so_when_they_end() {
    for order in ORDERS {
        let options = Options { order, copies: Landing::Late, threads: 2, ..Options::default() };
        let finding = finding(met, "NO_WAIT", &options);
        assert_eq!(finding.kind, Kind::AbsentBlock, "{options:?}: {finding}");
    }
}

#[test]
fn proxies_need_fences() {
    found(through_bulk, "NO_FENCE", &[Kind::UnfencedProxy]);
    found(stored_then_loaded, "SHARED_FENCE", &[Kind::UnfencedProxy]);
    found(through_bulk, "NO_WAIT", &[Kind::CopyInFlight]);
    let mut under_way = 0;
    for options in options() {
        // A copy that comes behind the read is mended otherwise.
        let finding = self::finding(doubled, "NO_WAIT", &options);
        if finding.kind == Kind::CopyInFlight {
            under_way += 1;
            assert!(finding.fix.contains("the mbarrier at which"), "{options:?}: {finding}");
        }
        let finding = self::finding(through_bulk, "NO_FENCE", &options);
        assert!(finding.fix.starts_with("fence.proxy.async "), "{options:?}: {finding}");
    }
    assert!(under_way > 0);
}

#[test]
fn what_never_comes_is_told_at_once() {
    let before = Instant::now();
    for (fault, missing) in [
        ("TOO_MANY_BYTES", "phase 0 (parity 0): 1 of 1 arrivals, 256 of 272 bytes"),
        ("NO_ARRIVAL", "phase 0 (parity 0): 63 of 64 arrivals"),
    ] {
        found(doubled, fault, &[Kind::Deadlock]);
        let text = finding(doubled, fault, &Options::default()).to_string();
        assert!(text.contains(missing), "{text}");
    }
    let text = finding(doubled, "TOO_MANY_BYTES", &Options::default()).to_string();
    assert!(text.contains("landed: 192 bytes of") && text.contains("asynchronous.cu:"), "{text}");
    assert!(before.elapsed().as_secs() < 10, "nothing waits for the watchdog");
}

#[test]
fn a_wrong_parity_passes_early_or_hangs() {
    found(
        doubled,
        "WRONG_PARITY",
        &[Kind::Race, Kind::CopyInFlight, Kind::Deadlock, Kind::Uninitialised],
    );
}
