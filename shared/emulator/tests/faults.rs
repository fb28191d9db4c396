//! Wrong kernels end in a report that names the line, never in a hang or a crash.
#![allow(missing_docs)]

mod common;

use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use common::{arg, module, plain, run};
use lab_emulator::{Config, LaunchError, Module, Options, Order};

static FAULTS: LazyLock<Arc<Module>> = LazyLock::new(|| {
    module(
        "faults.cu",
        &[
            "half_exits",
            "half_waits",
            "mixed",
            "spins_on_atomic",
            "spins_in_registers",
            "bad_address",
            "divides",
            "divides_the_least",
            "overflows",
            "lone_grid_sync",
            "leaves_the_grid",
            "not_in_mask",
            "traps",
            "works_long",
            "sums_twice<true>",
            "sums_twice<false>",
        ],
    )
});

/// The line marked `HERE name`.
fn line(name: &str) -> usize {
    let source = include_str!("kernels/faults.cu");
    1 + source.lines().position(|l| l.ends_with(&format!("HERE {name}"))).expect("the mark")
}

/// Runs a kernel that must fail; the report must hold `said` and the marked line.
fn report(kernel: &str, config: Config, said: &str) -> String {
    let mut memory = [0i32; 1024];
    let mut p = memory.as_mut_ptr();
    let options = Options { stall_limit: Duration::from_millis(500), ..Options::default() };
    let start = Instant::now();
    let error = run(&FAULTS, kernel, &config, &mut [arg(&mut p)], &options).unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(20), "it hung");
    let text = error.to_string();
    println!("{text}\n");
    assert!(matches!(error, LaunchError::Kernel { .. }), "{text}");
    assert!(text.starts_with(&format!("{kernel}: ")), "{text}");
    assert!(text.contains(said), "{text}");
    if kernel != "overflows" {
        let place = format!("faults.cu:{}", line(kernel));
        assert!(text.contains(&place), "{place} in {text}");
    }
    text
}

#[test]
fn a_collective_that_half_of_its_lanes_never_reach_is_a_deadlock() {
    let text = report("half_waits", plain(1, 32), "deadlock");
    assert!(text.contains("16 threads (0,0,0)..(15,0,0): __shfl_sync (mask 0xffffffff)"), "{text}");
    assert!(text.contains("16 threads (16,0,0)..(31,0,0): __syncthreads"), "{text}");
    let mut p = std::ptr::null_mut::<i32>();
    run(&FAULTS, "half_exits", &plain(1, 32), &mut [arg(&mut p)], &Options::default()).unwrap();
}

#[test]
fn barriers_of_different_kinds() {
    let text = report("mixed", plain(1, 64), "different kinds of barrier");
    assert!(text.contains("__syncthreads_count") && text.contains("32 threads"), "{text}");
}

#[test]
fn endless_spins_are_stopped_with_their_line() {
    report("spins_on_atomic", plain(3, 33), "endless spin");
    report("spins_in_registers", plain(2, 1), "no end for");
    report("spins_on_atomic", Config { cooperative: true, ..plain(3, 33) }, "endless spin");
}

/// A barrier that keeps a quick warp back is missed only where a warp may be quick.
#[test]
fn one_warp_far_ahead_shows_a_missing_barrier() {
    let right = |kernel: &str, order| {
        let mut out = [0i32; 512];
        let mut p = out.as_mut_ptr();
        let options = Options { order, ..Options::default() };
        run(&FAULTS, kernel, &plain(1, 256), &mut [arg(&mut p)], &options).unwrap();
        out[..256].iter().all(|&v| v == 256) && out[256..].iter().all(|&v| v == 512)
    };
    for order in [Order::Forward, Order::Reverse, Order::Random(3), Order::Warps, Order::Starve(3)]
    {
        assert!(right("sums_twice<true>", order), "{order:?}");
    }
    assert!(right("sums_twice<false>", Order::Forward), "warps that move together hide it");
    assert!(!right("sums_twice<false>", Order::Warps));
}

#[test]
fn a_long_block_is_no_stall() {
    let mut memory = [0i32; 1024];
    let mut p = memory.as_mut_ptr();
    let limit = Duration::from_millis(400);
    let options = Options { stall_limit: limit, threads: 1, ..Options::default() };
    let start = Instant::now();
    run(&FAULTS, "works_long", &plain(1, 96), &mut [arg(&mut p)], &options).unwrap();
    println!("{:?} for one block, limit {limit:?}", start.elapsed());
    assert!(start.elapsed() > 2 * limit, "too quick to prove anything: {:?}", start.elapsed());
}

#[test]
fn signals_name_the_instruction() {
    report("bad_address", plain(1, 1), "access to an invalid address 0x");
    report("divides", plain(1, 32), "integer division by zero");
    // A divisor of -1: the quotient, 2^31, is no int.
    report("divides_the_least", plain(1, 32), "division of the least integer, by -1 or zero");
    report("traps", plain(1, 32), "__trap()");
}

#[test]
fn stack_overflow_is_said() {
    report("overflows", plain(1, 1), "stack overflow");
    report("overflows", plain(4, 64), "stack overflow");
}

#[test]
fn grid_syncs_need_a_cooperative_launch_and_everybody() {
    report("lone_grid_sync", plain(2, 32), "not cooperative");
    let all = Config { cooperative: true, ..plain(3, 32) };
    report("leaves_the_grid", all, "1 blocks have exited");
}

#[test]
fn a_lane_outside_its_own_mask() {
    report("not_in_mask", plain(1, 32), "__shfl_sync by a lane that its mask");
}

#[test]
fn launches_are_refused_before_they_run() {
    let mut p = std::ptr::null_mut::<i32>();
    let cases = [
        (plain(0, 32), "grid.x: expected 1 to 2147483647, got 0"),
        (plain(1, 1025), "block.x: expected 1 to 1024, got 1025"),
        (
            Config { block: [32, 33, 1], ..plain(1, 1) },
            "threads per block: expected 1 to 1024, got 1056",
        ),
        (Config { grid: [1, 70000, 1], ..plain(1, 1) }, "grid.y: expected 1 to 65535, got 70000"),
        (
            Config { dynamic_shared: 300_000, ..plain(1, 1) },
            "dynamic shared memory in bytes: expected 1 to 232448, got 300000",
        ),
        (
            Config { cooperative: true, ..plain(2000, 1) },
            "blocks of a cooperative launch: expected 1 to 1024, got 2000",
        ),
    ];
    for (config, said) in cases {
        let error = run(&FAULTS, "traps", &config, &mut [arg(&mut p)], &Options::default());
        assert!(error.unwrap_err().to_string().contains(said), "{said}");
    }
    let error = run(&FAULTS, "traps", &plain(1, 1), &mut [], &Options::default()).unwrap_err();
    assert_eq!(error.to_string(), "traps: expected 1 arguments, got 0");
    let error = FAULTS.kernel("nothing").unwrap_err().to_string();
    assert!(error.contains("half_waits") && error.contains("got 'nothing'"), "{error}");
}

#[test]
fn a_launch_after_a_failed_one_is_clean() {
    for _ in 0..3 {
        report("traps", plain(64, 64), "__trap()");
        let mut memory = [1i32; 4];
        let mut p = memory.as_mut_ptr();
        run(&FAULTS, "traps", &plain(64, 64), &mut [arg(&mut p)], &Options::default()).unwrap();
    }
}
