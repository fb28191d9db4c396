//! Clusters: what their kernels compute, and what the checks say of those that are wrong.

use std::sync::{Arc, LazyLock};

use crate::common::{Arrays, arg, checked, module, plain, run};
use lab_emulator::{Config, Findings, Kind, LaunchError, Module, Options, Order};

const NAMES: [&str; 10] = [
    "ring<NONE>",
    "ring<NO_FIRST_SYNC>",
    "ring<NO_SECOND_SYNC>",
    "ring<NO_LAST_SYNC>",
    "ring<ALL_TO_ONE>",
    "ring<PAST_THE_END>",
    "ring<NOT_SHARED>",
    "through_global",
    "some_exit",
    "waits_for",
];

static CHECKED: LazyLock<Arc<Module>> = LazyLock::new(|| checked("clusters.cu", &NAMES));
static PLAIN: LazyLock<Arc<Module>> = LazyLock::new(|| module("clusters.cu", &NAMES));

const ORDERS: [Order; 5] =
    [Order::Forward, Order::Reverse, Order::Random(3), Order::Warps, Order::Starve(3)];

fn config(blocks: u32, cluster: u32) -> Config {
    Config { cluster, dynamic_shared: 128, ..plain(blocks, 32) }
}

/// Two clusters of `cluster` blocks, `rounds` rounds: what each block has in the end.
fn ring(
    module: &Arc<Module>,
    fault: &str,
    cluster: u32,
    rounds: i32,
    options: &Options,
) -> (Result<(), LaunchError>, Vec<f32>) {
    let blocks = 2 * cluster;
    let mut arrays = Arrays::new();
    let values: Vec<f32> = (0..blocks * 32).map(|v| (v / 32) as f32).collect();
    let (input, out) = (arrays.of(&values), arrays.of(&vec![-1f32; values.len()]));
    let (mut p, mut q, mut rounds) = (input, out, rounds);
    let mut arguments = [arg(&mut p), arg(&mut q), arg(&mut rounds)];
    let name = format!("ring<{fault}>");
    let outcome = run(module, &name, &config(blocks, cluster), &mut arguments, options);
    (outcome, arrays.read(out).into_iter().step_by(32).collect())
}

fn options() -> impl Iterator<Item = Options> {
    let of = |order| [1, 2].map(|threads| Options { order, threads, ..Options::default() });
    ORDERS.into_iter().flat_map(of)
}

#[test]
fn values_go_around_in_every_cluster() {
    for options in options() {
        for module in [&*PLAIN, &*CHECKED] {
            for cluster in [1, 2, 3, 8, 16] {
                let (outcome, got) = ring(module, "NONE", cluster, 5, &options);
                outcome.unwrap();
                let from =
                    |b: u32| b / cluster * cluster + (b % cluster + 5 * (cluster - 1)) % cluster;
                let expected: Vec<f32> = (0..2 * cluster).map(|b| from(b) as f32).collect();
                assert_eq!(got, expected, "{cluster} blocks, {options:?}");
            }
        }
    }
}

fn findings(outcome: Result<(), LaunchError>) -> Findings {
    match outcome {
        Err(LaunchError::Kernel { findings, .. }) => findings,
        other => panic!("expected findings, got {other:?}"),
    }
}

#[test]
fn each_missing_sync_is_found_in_every_order() {
    for order in ORDERS {
        let options = Options { order, ..Options::default() };
        for (fault, kinds, said) in [
            ("NO_FIRST_SYNC", &[Kind::AbsentBlock][..], "of the cluster, which may not have begun"),
            ("NO_LAST_SYNC", &[Kind::AbsentBlock, Kind::Race], ""),
            ("NO_SECOND_SYNC", &[Kind::Race, Kind::Uninitialised], "inbox["),
            ("ALL_TO_ONE", &[Kind::Race, Kind::Uninitialised], "race on inbox["),
            (
                "PAST_THE_END",
                &[Kind::OutOfBounds],
                "0 bytes past the end of dynamic shared memory, which has 128 bytes",
            ),
            ("NOT_SHARED", &[Kind::InvalidAddress], "an address in this block's shared memory"),
        ] {
            let found = findings(ring(&CHECKED, fault, 4, 2, &options).0);
            println!("{fault}, {order:?}: {found}\n");
            assert!(found.all.iter().all(|f| kinds.contains(&f.kind)), "{fault}: {found}");
            assert!(found.all.iter().any(|f| f.message.contains(said)), "{fault}: {found}");
        }
    }
}

#[test]
fn a_cluster_sync_orders_global_memory_for_its_own_blocks_only() {
    for order in ORDERS {
        let options = Options { order, ..Options::default() };
        for across in [0, 1] {
            let mut arrays = Arrays::new();
            let (mut values, mut out) = (arrays.of(&[0f32; 256]), arrays.of(&[0f32; 256]));
            let mut across = across;
            let mut arguments = [arg(&mut values), arg(&mut out), arg(&mut across)];
            let outcome = run(&CHECKED, "through_global", &config(8, 4), &mut arguments, &options);
            match across {
                0 => outcome.unwrap(),
                _ => assert!(findings(outcome).all.iter().all(|f| f.kind == Kind::Race)),
            }
        }
    }
}

#[test]
fn blocks_that_have_exited_are_not_waited_for() {
    for options in options() {
        for module in [&*PLAIN, &*CHECKED] {
            let mut arrays = Arrays::new();
            let out = arrays.of(&[0f32; 4]);
            let mut p = out;
            run(module, "some_exit", &config(4, 4), &mut [arg(&mut p)], &options).unwrap();
            assert_eq!(arrays.read(out), [0.0, 1.0, 1.0, 1.0]);
        }
    }
}

/// Whatever order they come in, clusters that wait for one another are resident at once.
#[test]
fn a_cluster_may_wait_for_a_later_one() {
    const CLUSTERS: i32 = 12;
    for options in options() {
        for (module, distance) in [&*PLAIN, &*CHECKED].into_iter().flat_map(|m| [(m, 1), (m, -1)]) {
            let mut arrays = Arrays::new();
            let (flags, out) = (arrays.of(&[0; CLUSTERS as usize]), arrays.unwritten::<i32>(24));
            let (mut p, mut q, mut distance) = (flags, out, distance);
            let mut arguments = [arg(&mut p), arg(&mut q), arg(&mut distance)];
            match run(module, "waits_for", &config(24, 2), &mut arguments, &options) {
                Ok(()) => {}
                Err(error) => {
                    let found = findings(Err(error));
                    let is_formal = |f: &lab_emulator::Finding| {
                        f.kind == Kind::AwaitsBlock && f.formal.is_some()
                    };
                    assert!(found.all.iter().all(is_formal), "{distance}, {options:?}: {found}");
                }
            }
            let of = |block: i32| match distance {
                1 => CLUSTERS - block / 2,
                _ => block / 2 + 1,
            };
            let expected: Vec<i32> = (0..24).map(of).collect();
            assert_eq!(arrays.read(out), expected, "{distance}, {options:?}");
        }
    }
    // One that waits for itself waits for ever.
    let stall_limit = std::time::Duration::from_millis(300);
    for module in [&*PLAIN, &*CHECKED] {
        let mut arrays = Arrays::new();
        let (mut p, mut q, mut distance) = (arrays.of(&[0; 4]), arrays.unwritten::<i32>(8), 0);
        let mut arguments = [arg(&mut p), arg(&mut q), arg(&mut distance)];
        let options = Options { stall_limit, ..Options::default() };
        let outcome = run(module, "waits_for", &config(8, 2), &mut arguments, &options);
        let found = findings(outcome);
        assert!(found.all.iter().any(|f| f.message.starts_with("endless spin")), "{found}");
    }
}

#[test]
fn a_grid_that_does_not_fall_into_clusters_is_refused() {
    let refused = |config: Config| {
        let mut null: *mut f32 = std::ptr::null_mut();
        let options = Options::default();
        run(&PLAIN, "some_exit", &config, &mut [arg(&mut null)], &options).unwrap_err().to_string()
    };
    let said = refused(config(6, 4));
    let expected = "some_exit: blocks of a cluster: expected a divisor of grid.x, 6, in a launch that \
                    is not cooperative, got 4";
    assert_eq!(said, expected);
    let said = refused(Config { cooperative: true, ..config(8, 4) });
    assert!(said.ends_with("got 4 in a cooperative one"), "{said}");
    let said = refused(config(34, 17));
    assert!(said.ends_with("blocks of a cluster: expected 1 to 16, got 17"), "{said}");
}
