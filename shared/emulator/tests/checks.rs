//! What the checks say, and how. Which bugs they find is held in `shared/corpus`.

use std::sync::{Arc, LazyLock};

use crate::common::{Arrays, arg, checked, plain, run};
use lab_emulator::{
    Check, Config, Finding, Findings, Kind, Landing, LaunchError, Module, Operation, Options,
};
use lab_emulator::{Order, Step, Tracer, host_copied, launch};

static CHECKS: LazyLock<Arc<Module>> = LazyLock::new(|| {
    let names = [
        "forgetful",
        "distances",
        "careful",
        "reads_at",
        "copies",
        "sums",
        "past_locals",
        "impatient",
        "many",
        "apart",
        "near_and_far",
    ];
    checked("checks.cu", &names)
});

/// The lines marked `HERE name`, as places begin.
fn places(name: &str) -> Vec<String> {
    let source = include_str!("kernels/checks.cu").lines().zip(1..);
    let marked = source.filter(|(text, _)| text.ends_with(&format!("HERE {name}")));
    marked.map(|(_, line)| format!("shared/emulator/tests/kernels/checks.cu:{line}:")).collect()
}

fn findings(outcome: Result<(), LaunchError>) -> Findings {
    match outcome {
        Err(LaunchError::Kernel { findings, .. }) => findings,
        other => panic!("expected findings, got {other:?}"),
    }
}

/// The only finding; each of its accesses is at a marked line.
#[track_caller]
fn only(kernel: &str, outcome: Result<(), LaunchError>) -> Finding {
    let findings = findings(outcome);
    println!("{findings}\n");
    assert_eq!((findings.all.len(), findings.more), (1, 0), "{findings}");
    let finding = findings.all.into_iter().next().unwrap();
    let marked = places(kernel);
    assert!(finding.accesses.iter().all(|a| a.block == [0, 0, 0]), "{finding}");
    assert!(finding.places().any(|p| marked.iter().any(|m| p.starts_with(m))), "{finding}");
    finding
}

fn reverse(kernel: &str, order: Order) -> (Result<(), LaunchError>, Vec<f32>) {
    let mut arrays = Arrays::new();
    let x = arrays.of(&(0..64).map(|i| i as f32).collect::<Vec<_>>());
    let (mut p, mut n) = (x, 64i32);
    let options = Options { order, ..Options::default() };
    let outcome = run(&CHECKS, kernel, &plain(1, 64), &mut [arg(&mut p), arg(&mut n)], &options);
    (outcome, arrays.read(x))
}

#[test]
fn a_race_names_both_accesses_the_array_and_the_remedy() {
    for order in [Order::Forward, Order::Reverse, Order::Random(5), Order::Warps, Order::Starve(5)]
    {
        let finding = only("forgetful", reverse("forgetful", order).0);
        assert_eq!((finding.kind, finding.kind.check()), (Kind::Race, Check::Race));
        assert!(finding.message.starts_with("race on part["), "{finding}");
        assert!(finding.message.ends_with("] (shared memory, f32)"), "{finding}");
        let [a, b] = &finding.accesses[..] else { panic!("{finding}") };
        assert!(places("forgetful").iter().all(|p| [a, b].iter().any(|x| x.place.starts_with(p))));
        assert_ne!(a.thread, b.thread);
        assert!(finding.fix.contains("__sync"), "{finding}");
        assert!(finding.count > 1, "one finding for all threads: {finding}");
        let (outcome, x) = reverse("careful", order);
        outcome.unwrap();
        assert_eq!(x[0], 63.0);
    }
}

/// Where one barrier is needed, a narrower one for another array of the same line would be in vain.
#[test]
fn findings_of_a_line_ask_for_one_barrier() {
    for order in [Order::Forward, Order::Reverse, Order::Starve(5)] {
        let mut arrays = Arrays::new();
        let mut out = arrays.of(&[0f32; 64]);
        let options = Options { order, ..Options::default() };
        let outcome = run(&CHECKS, "near_and_far", &plain(1, 64), &mut [arg(&mut out)], &options);
        let findings = findings(outcome);
        let races: Vec<_> = findings.all.iter().filter(|f| f.kind == Kind::Race).collect();
        assert_eq!(races.len(), 2, "{findings}");
        assert!(races.iter().all(|f| f.fix == "__syncthreads() between the two"), "{findings}");
    }
}

/// One finding stands for pairs of one warp, of two warps and of two blocks.
#[test]
fn the_remedy_is_that_of_the_widest_pair() {
    let of_warps =
        "lanes of a warp do not run in step: __syncwarp() between the two, or __syncthreads()";
    let of_blocks = "__syncthreads() between the two; also between lanes of one warp";
    for order in [Order::Forward, Order::Reverse, Order::Random(5), Order::Starve(5)] {
        let finding_of = |mut distance: i32, cooperative: bool| {
            let mut arrays = Arrays::new();
            let (mut x, mut out) = (arrays.of(&[0f32; 128]), arrays.of(&[0f32; 128]));
            let mut arguments = [arg(&mut x), arg(&mut out), arg(&mut distance)];
            let options = Options { order, ..Options::default() };
            let config = Config { cooperative, ..plain(2, 64) };
            let outcome = run(&CHECKS, "distances", &config, &mut arguments, &options);
            let mut findings = findings(outcome);
            println!("{findings}\n");
            assert_eq!((findings.all.len(), findings.more), (1, 0), "{findings}");
            findings.all.remove(0)
        };
        let finding = |distance: i32| finding_of(distance, false);
        assert_eq!(finding(1).fix, of_warps);
        assert_eq!(finding(32).fix, of_blocks);
        let widest = finding(64);
        assert!(widest.fix.starts_with("blocks run in any order: "), "{widest}");
        assert!(widest.fix.ends_with("; also between lanes of one warp"), "{widest}");
        // Blocks of a cooperative launch can meet.
        let of_grid = finding_of(64, true).fix;
        assert!(of_grid.starts_with("grid.sync() between the two"), "{of_grid}");
        // The pair that is shown is one that needs it.
        assert_ne!(widest.accesses[0].block, widest.accesses[1].block, "{widest}");
    }
}

#[test]
fn a_run_is_the_same_every_time() {
    let told = || findings(reverse("forgetful", Order::Forward).0).to_string();
    assert_eq!(told(), told());
}

fn read_at(x: *mut f32, out: *mut f32, i: i32) -> Result<(), LaunchError> {
    let (mut x, mut out, mut i) = (x, out, i);
    let mut arguments = [arg(&mut x), arg(&mut out), arg(&mut i)];
    run(&CHECKS, "reads_at", &plain(1, 1), &mut arguments, &Options::default())
}

#[test]
fn an_address_that_belongs_to_nobody() {
    let mut arrays = Arrays::new();
    let (x, out) = (arrays.of(&[1f32; 5]), arrays.of(&[0f32]));
    read_at(x, out, 4).unwrap();
    for (index, said) in [
        (5, "out of bounds: x[5] (f32, 5 elements), 0 bytes past the end of x, which has 20 bytes"),
        (
            -1,
            "out of bounds: x[-1] (f32, 5 elements), 4 bytes before the start of x, which has 20 bytes",
        ),
    ] {
        let finding = only("reads_at", read_at(x, out, index));
        assert_eq!((finding.kind, finding.message.as_str()), (Kind::OutOfBounds, said));
    }
    // 400 bytes behind `out`, which need not be what it missed.
    let far = (out as isize - x as isize) / 4 + 101;
    let expected = match far * 4 - 20 {
        distance @ 0.. => format!("; or {distance} bytes past the end of x: which pointer"),
        _ => format!("; or {} bytes before the start of x: which pointer", -far * 4),
    };
    let finding = only("reads_at", read_at(x, out, far as i32));
    assert!(finding.message.contains("400 bytes past the end of out, which"), "{finding}");
    assert!(finding.message.contains(&expected), "{finding}");
    let near = only("reads_at", read_at(x, out, far as i32 - 50));
    assert!(!near.message.contains(" or "), "{near}");
    let null = only("reads_at", read_at(std::ptr::null_mut(), out, 3));
    assert_eq!(null.message, "null pointer: address 0xc belongs to no allocation (x is null)");
    let wild = only("reads_at", read_at(x, out, 1 << 30));
    assert!(wild.message.contains("belongs to no allocation"), "{wild}");
}

#[test]
fn freed_memory_is_not_anybodys() {
    let mut arrays = Arrays::new();
    let out = arrays.of(&[0f32]);
    let x = Arrays::new().of(&[1f32; 5]); // freed at once
    let finding = only("reads_at", read_at(x, out, 3));
    assert_eq!((finding.kind, finding.kind.check()), (Kind::UseAfterFree, Check::Memory));
    assert!(finding.message.contains("byte 12 of 20"), "{finding}");
}

#[test]
fn what_nobody_wrote_is_not_read() {
    let mut arrays = Arrays::new();
    let (x, out) = (arrays.unwritten::<f32>(5), arrays.of(&[0f32]));
    let finding = only("reads_at", read_at(x, out, 2));
    assert_eq!((finding.kind, finding.kind.check()), (Kind::Uninitialised, Check::Init));
    assert!(finding.message.starts_with("uninitialised: x[2] (f32, 5 elements)"), "{finding}");
    // A kernel writes one of them; a copy carries over which.
    let y = arrays.of(&[7f32]);
    let (target, copy) = (arrays.unwritten::<f32>(2), arrays.unwritten::<f32>(2));
    read_at(y, target, 0).unwrap();
    host_copied(target.cast(), copy.cast());
    read_at(copy, out, 0).unwrap();
    only("reads_at", read_at(copy, out, 1));
}

#[test]
fn library_calls_are_looked_at() {
    let mut arrays = Arrays::new();
    let (x, out) = (arrays.of(&[1f32; 8]), arrays.unwritten::<f32>(5));
    let copy = |bytes: i32| {
        let (mut x, mut out, mut bytes) = (x, out, bytes);
        let mut arguments = [arg(&mut x), arg(&mut out), arg(&mut bytes)];
        run(&CHECKS, "copies", &plain(1, 1), &mut arguments, &Options::default())
    };
    copy(20).unwrap();
    let finding = only("copies", copy(24));
    assert!(finding.message.contains("past the end of out"), "{finding}");
}

#[test]
fn local_variables_without_a_value() {
    let mut arrays = Arrays::new();
    let (x, out) = (arrays.of(&[1f32; 8]), arrays.unwritten::<f32>(8));
    let (mut x, mut out, mut n) = (x, out, 8i32);
    let mut arguments = [arg(&mut x), arg(&mut out), arg(&mut n)];
    let sums = run(&CHECKS, "sums", &plain(1, 8), &mut arguments, &Options::default());
    let finding = only("sums", sums);
    assert_eq!(finding.kind, Kind::UninitialisedLocal);
    assert!(finding.suspects.iter().any(|s| s.name == "sum"), "{finding}");
    n = 4;
    let mut arguments = [arg(&mut x), arg(&mut out), arg(&mut n)];
    let past = run(&CHECKS, "past_locals", &plain(1, 1), &mut arguments, &Options::default());
    let finding = only("past_locals", past);
    assert!(finding.message.contains("index 4 of an array float [4]"), "{finding}");
}

#[test]
fn a_copy_under_way_may_land_early_or_late() {
    for (copies, lands) in [(Landing::Late, -1.0), (Landing::Early, 5.0)] {
        let mut arrays = Arrays::new();
        let (x, out) = (arrays.of(&[5f32; 32]), arrays.unwritten::<f32>(32));
        let (mut px, mut po) = (x, out);
        let options = Options { copies, ..Options::default() };
        let mut arguments = [arg(&mut px), arg(&mut po)];
        let outcome = run(&CHECKS, "impatient", &plain(1, 32), &mut arguments, &options);
        assert_eq!(only("impatient", outcome).kind, Kind::CopyInFlight);
        assert_eq!(arrays.read(out)[0], lands);
    }
}

#[test]
fn a_flood_is_held_back() {
    let mut arrays = Arrays::new();
    let mut x = arrays.unwritten::<i32>(64);
    let outcome = run(&CHECKS, "many", &plain(1, 64), &mut [arg(&mut x)], &Options::default());
    let findings = findings(outcome);
    assert!(findings.all.len() == 20 && findings.more >= 20, "{} more", findings.more);
    assert!(findings.to_string().ends_with("more findings at other places"));
}

#[test]
fn barriers_apart_are_told_and_the_kernel_runs_on() {
    let mut arrays = Arrays::new();
    let out = arrays.unwritten::<i32>(64);
    let mut p = out;
    let outcome = run(&CHECKS, "apart", &plain(1, 64), &mut [arg(&mut p)], &Options::default());
    let finding = only("apart", outcome);
    assert_eq!((finding.kind, finding.kind.check()), (Kind::DivergentBarrier, Check::Sync));
    assert!(arrays.read(out).iter().all(|&v| v == 1));
}

#[test]
fn counts_by_line() {
    let mut arrays = Arrays::new();
    let mut x = arrays.of(&[1f32; 64]);
    let mut n = 64i32;
    let kernel = CHECKS.kernel("careful").unwrap();
    let options = Options { count: true, ..Options::default() };
    let config: Config = plain(1, 64);
    // SAFETY: what the kernel declares.
    let profile =
        unsafe { launch(&kernel, &config, &[arg(&mut x), arg(&mut n)], &options) }.unwrap();
    let total = |operation| {
        let t = profile.total(operation);
        (t.requests, t.cost, t.ideal)
    };
    assert_eq!(total(Operation::GlobalLoad), (2, 8, 8), "two warps, four sectors each");
    assert_eq!(total(Operation::GlobalStore), (2, 8, 8));
    assert_eq!(total(Operation::SharedLoad), (2, 2, 2));
    assert_eq!(total(Operation::Barrier).0, 2);
    assert!(profile.lines.iter().all(|l| l.place.contains("checks.cu:")), "{profile:?}");
}

/// Each of 64 threads loads an element, stores it to a tile, waits, and stores another's.
#[test]
fn a_tracer_is_told_what_happens_as_it_happens() {
    let tracer: &Tracer = Box::leak(Box::default());
    for count in [true, false] {
        let mut arrays = Arrays::new();
        let mut x = arrays.of(&(0..64).map(|i| i as f32).collect::<Vec<_>>());
        let mut n = 64i32;
        let kernel = CHECKS.kernel("careful").unwrap();
        let options = Options { count, trace: Some(tracer), ..Options::default() };
        // SAFETY: what the kernel declares.
        unsafe { launch(&kernel, &plain(1, 64), &[arg(&mut x), arg(&mut n)], &options) }.unwrap();
        let events = tracer.take();
        if !count {
            assert!(events.is_empty(), "{events:?}");
            continue;
        }
        assert_eq!(events.len(), 64 * 5);
        let met: Vec<usize> =
            (0..events.len()).filter(|&n| events[n].step == Step::Comes { met: true }).collect();
        assert_eq!(met, [64 * 3 - 1], "behind all that come before the barrier");
        for event in &events {
            let Step::Access { operation, array, offset, bytes, value } = &event.step else {
                continue;
            };
            let thread = event.thread as usize;
            let value = f32::from_ne_bytes(value.as_slice().try_into().unwrap());
            let (name, index, expected) = match operation {
                Operation::GlobalLoad => ("x", thread, thread),
                Operation::SharedStore => ("part", thread, thread),
                Operation::SharedLoad => ("part", 63 - thread, 63 - thread),
                Operation::GlobalStore => ("x", thread, 63 - thread),
                other => panic!("{other:?}"),
            };
            assert_eq!((&*array.name, *offset, *bytes), (name, 4 * index, 4), "{event:?}");
            assert_eq!(value, expected as f32, "{event:?}");
            assert!(event.place.own.contains("checks.cu:"), "{event:?}");
        }
    }
}
