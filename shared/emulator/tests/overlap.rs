//! Grids that begin before the one before them has ended: which uses of memory are found, and which are not.

use std::sync::{Arc, LazyLock};

use crate::common::{Arrays, arg, checked, module, plain, run};
use lab_emulator::{
    Check, Config, Finding, Kind, Landing, LaunchError, Module, Options, Order, grids_ended,
};

const NAMES: [&str; 18] = [
    "produce",
    "produce_silent",
    "produce_and_meet",
    "watch",
    "consume",
    "consume_first",
    "read_early",
    "write_early",
    "never_wait",
    "one_waits<false>",
    "one_waits<true>",
    "produce_halves",
    "halves_early",
    "count",
    "copy_early",
    "flagged<false>",
    "flagged<true>",
    "consume_by_turns",
];

static CHECKED: LazyLock<Arc<Module>> = LazyLock::new(|| checked("overlap.cu", &NAMES));
static PLAIN: LazyLock<Arc<Module>> = LazyLock::new(|| module("overlap.cu", &NAMES));

/// Elements of each array: two blocks of 64.
const N: usize = 128;

/// An argument: an array, or a number.
#[derive(Clone, Copy)]
enum Value {
    Array(usize),
    Number(i32),
}
use Value::{Array, Number};

// The arrays. From W on they are zero at first.
const FROM: Value = Array(0);
const WEIGHTS: Value = Array(1);
const X: Value = Array(2);
const OUT: Value = Array(3);
const Y: Value = Array(4);

/// A launch: the kernel, its blocks, whether it overlaps, its arguments.
type Step = (&'static str, u32, bool, &'static [Value]);
/// It does, or it does not.
const OVER: bool = true;
const APART: bool = false;

fn options() -> impl Iterator<Item = Options> {
    let orders = [Order::Forward, Order::Reverse, Order::Random(7), Order::Warps, Order::Starve(1)];
    let all = move |order| {
        [Landing::Late, Landing::Early].map(|copies| Options {
            order,
            copies,
            ..Options::default()
        })
    };
    orders.into_iter().flat_map(all)
}

/// Makes the launches one after the other; what the last came to, and the arrays. All others are right.
fn make(
    module: &Arc<Module>,
    steps: &[Step],
    options: &Options,
) -> (Result<(), LaunchError>, Vec<Vec<i32>>) {
    grids_ended();
    let mut arrays = Arrays::new();
    let ramp: Vec<i32> = (0..N as i32).collect();
    let first = |n| if n < 2 { ramp.clone() } else { vec![0; N] };
    let all: Vec<*mut i32> = (0..5).map(|n| arrays.of(&first(n))).collect();
    let mut last = Ok(());
    for (n, (name, blocks, overlap_previous, values)) in steps.iter().enumerate() {
        last.unwrap_or_else(|e| panic!("step {n}: {e}"));
        let mut pointers = all.clone();
        let mut numbers = [0i32; 5];
        let mut arguments = Vec::new();
        for (at, value) in values.iter().enumerate() {
            arguments.push(match *value {
                Array(index) => arg(&mut pointers[index]),
                Number(number) => {
                    numbers[at] = number;
                    arg(&mut numbers[at])
                }
            });
        }
        let cooperative = *name == "produce_and_meet";
        let config =
            Config { cooperative, overlap_previous: *overlap_previous, ..plain(*blocks, 64) };
        last = run(module, name, &config, &mut arguments, options);
    }
    (last, all.iter().map(|&array| arrays.read(array)).collect())
}

/// The lines marked `HERE name`, as places begin.
fn places(name: &str) -> Vec<String> {
    let source = include_str!("kernels/overlap.cu").lines().zip(1..);
    let marked = source.filter(|(text, _)| text.ends_with(&format!("HERE {name}")));
    marked.map(|(_, line)| format!("shared/emulator/tests/kernels/overlap.cu:{line}:")).collect()
}

fn findings(outcome: Result<(), LaunchError>) -> Vec<Finding> {
    match outcome {
        Ok(()) => Vec::new(),
        Err(LaunchError::Kernel { findings, .. }) => findings.all,
        Err(other) => panic!("{other}"),
    }
}

/// Found in whatever order, at the lines of these two kernels: the earlier one, and the last.
#[track_caller]
fn found(steps: &[Step], earlier: &str, said: &str) {
    let name = steps.last().unwrap().0;
    for options in options() {
        let all = findings(make(&CHECKED, steps, &options).0);
        let Some(finding) = all.first() else { panic!("{name}, {options:?}: nothing found") };
        assert!(all.iter().all(|f| f.kind == Kind::GridInFlight), "{options:?}: {all:?}");
        assert_eq!(finding.kind.check(), Check::Race);
        assert!(finding.message.contains(said), "{finding}");
        assert!(finding.fix.contains("griddep_wait()"), "{finding}");
        let [first, second] = &finding.accesses[..] else { panic!("{finding}") };
        for (access, kernel) in [(first, earlier), (second, name)] {
            let mut named = std::iter::once(&access.place).chain(&access.within);
            let at = |place: &String| named.any(|p| p.starts_with(place));
            assert!(places(kernel).iter().any(at), "{kernel}, {options:?}: {finding}");
        }
    }
}

/// Nothing is found, in whatever order.
#[track_caller]
fn clean(steps: &[Step]) {
    for options in options() {
        let outcome = make(&CHECKED, steps, &options).0;
        outcome.unwrap_or_else(|e| panic!("{}, {options:?}: {e}", steps.last().unwrap().0));
    }
}

const PRODUCE: Step = ("produce", 2, APART, &[FROM, X]);

#[test]
fn a_right_chain_computes_what_it_should() {
    let steps = [
        PRODUCE,
        ("consume", 2, OVER, &[WEIGHTS, X, OUT]),
        ("consume", 2, OVER, &[WEIGHTS, OUT, X]),
    ];
    for module in [&*PLAIN, &*CHECKED] {
        for options in options() {
            let (outcome, arrays) = make(module, &steps, &options);
            outcome.unwrap_or_else(|e| panic!("{options:?}: {e}"));
            assert!((0..N).all(|i| arrays[2][i] == (i * i * (i + 1)) as i32), "{options:?}");
        }
    }
}

#[test]
fn a_read_before_the_wait_is_found() {
    found(
        &[PRODUCE, ("read_early", 2, OVER, &[WEIGHTS, X, OUT])],
        "produce",
        "(i32, 128 elements): read before griddep_wait(), while produce, the launch before, may write it",
    );
    // A block that ends lets the next grid begin as well.
    let silent = ("produce_silent", 2, APART, &[FROM, X][..]);
    found(&[silent, ("read_early", 2, OVER, &[WEIGHTS, X, OUT])], "produce_silent", "race on x[");
    // Without the overlap all is well; so it is if somebody else wrote it.
    clean(&[PRODUCE, ("read_early", 2, APART, &[WEIGHTS, X, OUT])]);
    clean(&[PRODUCE, ("read_early", 2, OVER, &[WEIGHTS, FROM, OUT])]);
}

#[test]
fn the_report_says_who_where_and_what_to_do() {
    let steps = [PRODUCE, ("read_early", 2, OVER, &[WEIGHTS, X, OUT][..])];
    let all = findings(make(&CHECKED, &steps, &Options::default()).0);
    assert_eq!(all.len(), 1, "{all:?}");
    let (said, line) = (all[0].to_string(), |name: &str| places(name)[0].clone());
    for part in [
        "race on x[0] (i32, 128 elements): read before griddep_wait(), while produce, the launch before",
        &format!("write in produce at {}", line("produce")),
        &format!("read of 4 bytes at {}", line("read_early")),
        "by block (0,0,0), thread (0,0,0)",
        "fix: call griddep_wait() (CUDA's cudaGridDependencySynchronize()) before, or let a barrier order it behind a thread that has",
        "seen 128 times",
    ] {
        assert!(said.contains(part), "{part}\n{said}");
    }
}

#[test]
fn a_write_before_the_wait_is_found() {
    let early: Step = ("write_early", 2, OVER, &[WEIGHTS, X]);
    found(&[PRODUCE, early], "produce", "written before griddep_wait(), while produce");
    let watch: Step = ("watch", 2, APART, &[X, OUT]);
    found(&[watch, early], "watch", "while watch, the launch before, may read it");
    clean(&[watch, ("write_early", 2, OVER, &[WEIGHTS, Y])]);
    clean(&[PRODUCE, ("write_early", 2, APART, &[WEIGHTS, X])]);
}

#[test]
fn a_kernel_that_never_waits_must_share_nothing() {
    found(&[PRODUCE, ("never_wait", 2, OVER, &[X, OUT])], "produce", "read before griddep_wait()");
    clean(&[PRODUCE, ("never_wait", 2, OVER, &[FROM, OUT])]);
    clean(&[PRODUCE, ("never_wait", 2, APART, &[X, OUT])]);
}

#[test]
fn a_barrier_hands_on_what_one_thread_has_waited_for() {
    clean(&[PRODUCE, ("one_waits<true>", 2, OVER, &[X, OUT])]);
    let without: Step = ("one_waits<false>", 2, OVER, &[X, OUT]);
    found(&[PRODUCE, without], "produce", "read before griddep_wait()");
    for options in options() {
        let all = findings(make(&CHECKED, &[PRODUCE, without], &options).0);
        assert_eq!((all.len(), all[0].count), (1, 126), "all but the two that wait: {options:?}");
    }
    // By a flag, from block to block.
    clean(&[PRODUCE, ("flagged<true>", 2, OVER, &[X, OUT, Y])]);
    let nobody: Step = ("flagged<false>", 2, OVER, &[X, OUT, Y]);
    found(&[PRODUCE, nobody], "produce", "read before griddep_wait()");
    let all = findings(make(&CHECKED, &[PRODUCE, nobody], &Options::default()).0);
    assert_eq!((all.len(), all[0].count), (1, 128), "a flag alone tells nothing: {all:?}");
}

/// When the third launch begins, or has waited, what has the first done?
#[test]
fn a_wait_is_for_the_launch_before_alone() {
    let waits: Step = ("consume", 2, OVER, &[WEIGHTS, X, OUT]);
    // `consume` lets the next begin before it has waited itself: then the first may still run.
    let third: Step = ("read_early", 2, OVER, &[WEIGHTS, X, Y]);
    found(&[PRODUCE, waits, third], "produce", "while produce, 2 launches before, may write it");
    // Behind the wait of the second, which has waited for the first, it has ended.
    clean(&[PRODUCE, waits, ("consume", 2, OVER, &[WEIGHTS, X, Y])]);
    // So it has if the second lets nobody begin before its own wait.
    clean(&[PRODUCE, ("consume_first", 2, OVER, &[WEIGHTS, X, OUT]), third]);
    clean(&[PRODUCE, ("read_early", 2, OVER, &[WEIGHTS, FROM, OUT]), third]);
    // One block that does so is enough.
    clean(&[PRODUCE, ("consume_by_turns", 2, OVER, &[WEIGHTS, X, OUT]), third]);
    // A launch between that never waits says nothing of the first, which may outlast it.
    let never: Step = ("never_wait", 2, OVER, &[FROM, OUT]);
    let all = [PRODUCE, never, ("one_waits<true>", 2, OVER, &[X, Y])];
    for options in options() {
        let all = findings(make(&CHECKED, &all, &options).0);
        let said = "read while produce, 2 launches before, may write it: a launch between has not";
        assert!(all.iter().any(|f| f.message.contains(said)), "{all:?}");
    }
    clean(&[PRODUCE, never, ("one_waits<true>", 2, APART, &[X, Y])]);
    clean(&[
        PRODUCE,
        ("never_wait", 2, APART, &[FROM, OUT]),
        ("one_waits<true>", 2, OVER, &[X, Y]),
    ]);
}

#[test]
fn what_the_shadow_forgets_of_a_launch_is_found_all_the_same() {
    // Written before a sync of the grid, read behind it.
    let met: Step = ("produce_and_meet", 2, APART, &[FROM, X, OUT]);
    let all = findings(
        make(&CHECKED, &[met, ("read_early", 2, OVER, &[WEIGHTS, X, Y])], &Options::default()).0,
    );
    assert!(all[0].message.contains("may write it"), "{all:?}");
    // Halves of words, each of another thread.
    let halves: Step = ("produce_halves", 1, APART, &[X, OUT]);
    for options in options() {
        for odd in [0, 1] {
            let steps: [Step; 2] = match odd {
                0 => [halves, ("halves_early", 1, OVER, &[X, Number(0)])],
                _ => [halves, ("halves_early", 1, OVER, &[X, Number(1)])],
            };
            let all = findings(make(&CHECKED, &steps, &options).0);
            assert_eq!((all.len(), all[0].count), (1, 32), "{all:?}");
        }
        let apart: [Step; 2] = [
            ("halves_early", 1, APART, &[X, Number(0)]),
            ("halves_early", 1, OVER, &[X, Number(1)]),
        ];
        assert!(findings(make(&CHECKED, &apart, &options).0).is_empty(), "the other halves");
    }
}

#[test]
fn atomics_do_not_race_and_copies_do() {
    let counts: Step = ("count", 2, APART, &[OUT, Number(1)]);
    clean(&[counts, ("count", 2, OVER, &[OUT, Number(0)])]);
    let watch: Step = ("watch", 2, APART, &[OUT, Y]);
    let all = findings(
        make(&CHECKED, &[watch, ("count", 2, OVER, &[OUT, Number(0)])], &Options::default()).0,
    );
    assert!(all[0].message.contains("while watch, the launch before, may read it"), "{all:?}");
    let produce: Step = ("produce", 1, APART, &[FROM, X]);
    found(&[produce, ("copy_early", 1, OVER, &[X, OUT, Number(1)])], "produce", "read before");
    clean(&[produce, ("copy_early", 1, OVER, &[X, OUT, Number(0)])]);
}

#[test]
fn queues_are_apart_and_the_host_can_wait() {
    let steps = [PRODUCE, ("read_early", 2, OVER, &[WEIGHTS, X, OUT][..])];
    let mut arrays = Arrays::new();
    let [from, x, out] = [(); 3].map(|()| arrays.of(&[1i32; N]));
    let launch = |step: &Step, queue, pointers: &mut [*mut i32]| {
        let mut arguments: Vec<_> = pointers.iter_mut().map(arg).collect();
        let config = Config { overlap_previous: step.2, ..plain(2, 64) };
        let options = Options { queue, ..Options::default() };
        run(&CHECKED, step.0, &config, &mut arguments, &options)
    };
    for (before, ended, right) in [(1, false, false), (2, false, true), (1, true, true)] {
        grids_ended();
        launch(&steps[0], before, &mut [from, x]).unwrap();
        launch(&steps[0], 3, &mut [from, out]).unwrap();
        if ended {
            grids_ended();
        }
        let outcome = launch(&steps[1], 1, &mut [from, x, out]);
        assert_eq!(outcome.is_ok(), right, "{before} {ended}: {outcome:?}");
    }
}

#[test]
fn a_cooperative_launch_overlaps_nothing() {
    let steps = [PRODUCE, ("produce_and_meet", 2, OVER, &[FROM, X, OUT][..])];
    let outcome = make(&CHECKED, &steps, &Options::default()).0;
    let Err(error @ LaunchError::OverlapCooperative { .. }) = outcome else {
        panic!("{outcome:?}")
    };
    assert!(
        error.to_string().starts_with("produce_and_meet: expected a launch that is"),
        "{error}"
    );
}
