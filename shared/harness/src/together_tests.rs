//! Collectives as steps of a plan, on emulated devices that look at each access.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use lab_device::{Call, Collective, Communicator, DType, Device, Group, Launch, Mode};

use crate::device_checks::kernels;
use crate::plan::{Pieces, Plan, Slot, Step};
use crate::{Error, Tensor, arguments};

const N: usize = 96;

/// What each of two ranks makes of it.
fn on_ranks<T: Send>(
    work: impl Fn(&Device, &Arc<Communicator>) -> Result<T, Error> + Sync,
) -> Vec<Result<T, String>> {
    let groups = Group::of_threads(2, Duration::from_secs(20));
    thread::scope(|scope| {
        let work = &work;
        let one = |group: Group| {
            let device = Device::emulator_in(Mode::Checked).unwrap();
            let ranks = Communicator::new(&device, group).map_err(|e| e.to_string())?;
            work(&device, &ranks).map_err(|e| e.to_string())
        };
        let all: Vec<_> = groups.into_iter().map(|g| scope.spawn(move || one(g))).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    })
}

/// Adds out += x.
fn add(plan: &mut Plan, x: Slot, out: Slot) -> Result<(), Error> {
    let kernel = plan.device().kernel(&kernels::DEVICE, "add_to<float>")?;
    plan.launch(&kernel, Launch::new(1, 128), arguments![x, out, n: out.len()])
}

fn values(value: f32) -> Tensor {
    Tensor::new(&[N], &[value; N])
}

#[test]
fn what_uses_a_sum_waits_for_it_and_nothing_else_does() {
    let outcomes = on_ranks(|device, ranks| {
        let mut plan = Plan::new(device);
        let x = plan.input("x", DType::F32, &[N]);
        let [sum, other] = ["sum", "other"].map(|name| plan.state_of_zeros(name, DType::F32, &[N]));
        add(&mut plan, x, sum)?;
        plan.within("layer", |plan| plan.all_reduce(ranks, sum.part(0, N / 2)))?;
        add(&mut plan, x, other)?; // Beside it.
        add(&mut plan, x.part(0, N / 2), sum.part(N / 2, N / 2))?; // The half that is not summed.
        add(&mut plan, sum, other)?; // Behind it.
        assert_eq!(plan.waits(), [None, None, None, None, Some(0), None]);
        let mut run = plan.bind().upload("x", &values(1.0 + ranks.rank() as f32))?.finish()?;
        run.graph()?.launch()?;
        Ok((run.read(sum)?.values(), run.read(other)?.values()))
    });
    // x is 1 and 2.
    for (rank, outcome) in outcomes.into_iter().enumerate() {
        let (sum, other) = outcome.unwrap();
        let x = 1.0 + rank as f64;
        assert_eq!((sum[0], sum[N - 1]), (3.0, 2.0 * x));
        assert_eq!((other[0], other[N - 1]), (x + 3.0, 3.0 * x));
    }
}

/// Of several under way, a launch waits for those up to the last that it uses.
#[test]
fn what_uses_one_of_several_sums_does_not_wait_for_those_behind_it() {
    let outcomes = on_ranks(|device, ranks| {
        let mut plan = Plan::new(device);
        let x = plan.input("x", DType::F32, &[N]);
        let [a, b, c, out] =
            ["a", "b", "c", "out"].map(|name| plan.state_of_zeros(name, DType::F32, &[N]));
        [a, b, c].into_iter().try_for_each(|sum| add(&mut plan, x, sum))?;
        [a, b, c].into_iter().try_for_each(|sum| plan.all_reduce(ranks, sum))?;
        add(&mut plan, b, out)?;
        add(&mut plan, a, out)?; // It has ended before b.
        add(&mut plan, x, out)?;
        let waits = plan.waits();
        assert_eq!(waits[6..], [Some(1), None, None, Some(2)]);
        let first = plan.first_use(out);
        plan.add_first(|plan| plan.all_reduce(ranks, out))?;
        assert_eq!((first, plan.first_use(out)), (Some(6), Some(0)));
        let mut run = plan.bind().upload("x", &values(1.0 + ranks.rank() as f32))?.finish()?;
        run.run()?;
        Ok(run.read(out)?.values())
    });
    for (rank, outcome) in outcomes.into_iter().enumerate() {
        assert_eq!(outcome, Ok(vec![7.0 + rank as f64; N]));
    }
}

/// Launches that do not wait, as no plan makes them: one reads what is summed, one writes it.
#[test]
fn what_is_used_before_its_end_is_found() {
    for (reads, said) in
        [(true, "initialis"), (false, "192 of 384 bytes were written before its end")]
    {
        let outcomes = on_ranks(|device, ranks| {
            let [sum, other] = [device.raw_buffer(4 * N)?, device.raw_buffer(4 * N)?];
            let stream = device.stream()?;
            let call = Call {
                collective: Collective::AllReduce,
                dtype: DType::F32,
                count: N,
                of: "sum".into(),
            };
            // SAFETY: both hold so many numbers, and live on; the launches are in order on one emulated device.
            unsafe {
                sum.write(0, values(1.0).bytes.as_slice())?;
                other.write(0, values(1.0).bytes.as_slice())?;
                ranks.run(&[(call, sum.address(), sum.address())], &stream)?;
                let f32s = DType::F32.into();
                let n = (N / 2).into();
                let early = if reads {
                    device.kernel(&kernels::DEVICE, "add_to<float>")?.bind(
                        Launch::new(1, 128),
                        &[
                            ("x", sum.arg(f32s, 0..N, false)?),
                            ("out", other.arg(f32s, 0..N, true)?),
                            ("n", n),
                        ],
                    )?
                } else {
                    device.kernel(&kernels::DEVICE, "fill<float>")?.bind(
                        Launch::new(1, 128),
                        &[("x", sum.arg(f32s, 0..N, true)?), ("value", 1f32.into()), ("n", n)],
                    )?
                };
                early.run(None)?;
            }
            Ok(ranks.settle()?)
        });
        for outcome in outcomes {
            let error = outcome.unwrap_err();
            assert!(error.contains(said), "{error}");
        }
    }
}

/// What a plan sums, between what it launches.
fn steps_of(plan: &Plan) -> Vec<String> {
    let name = |step: &Step| match step {
        Step::Together { calls, .. } => {
            calls.iter().map(|(call, ..)| call.of.clone()).collect::<Vec<_>>().join(" ")
        }
        _ => "add".into(),
    };
    plan.steps().iter().map(name).collect()
}

/// Of f32, each of which goes over the link once.
fn pieces(elements: usize) -> Pieces {
    Pieces { elements, bytes: 4 * elements }
}

/// The gradients of four layers, the last first: each piece goes as soon as nobody writes it any more.
#[test]
fn pieces_are_summed_as_soon_as_they_are_written() {
    let outcomes = on_ranks(|device, ranks| {
        let mut plan = Plan::new(device);
        let x = plan.input("x", DType::F32, &[N]);
        let arena = plan.state_of_zeros("arena", DType::F32, &[4 * N]);
        let part = |n: usize| arena.part(n * N, N);
        add(&mut plan, x, part(3))?; // Before the steps that are looked at.
        let first = plan.len();
        add(&mut plan, x, part(3))?;
        add(&mut plan, x.part(0, N / 2), part(2).part(0, N / 2))?;
        add(&mut plan, x.part(0, N / 2), arena.part(2 * N + N / 2, N / 2))?;
        add(&mut plan, x, part(0))?;
        add(&mut plan, x, part(3))?; // Used twice, as a matrix for what comes in and goes out is.
        plan.all_reduce_when_written(ranks, arena, first, pieces(N))?;
        assert_eq!(
            steps_of(&plan),
            [
                "add",
                "add",
                "add",
                "add",
                "arena[192..288]",
                "add",
                "arena[0..96]",
                "add",
                "arena[96..192] arena[288..384]",
            ]
        );
        assert_eq!(plan.waits().iter().flatten().collect::<Vec<_>>(), [&2], "at the end");
        let mut run = plan.bind().upload("x", &values(1.0 + ranks.rank() as f32))?.finish()?;
        run.run()?;
        let all = run.read(arena)?.values();
        assert_eq!([all[0], all[N], all[2 * N], all[3 * N]], [3.0, 0.0, 3.0, 9.0]);
        assert!((0..4).all(|n| all[n * N..][..N].iter().all(|v| *v == all[n * N])));
        Ok(())
    });
    assert_eq!(outcomes, [Ok(()), Ok(())]);
}

/// A piece waits for a launch of many blocks that moves enough beside it; those for which none will come do not wait.
#[test]
fn pieces_are_summed_beside_what_shares_the_device() {
    let outcomes = on_ranks(|device, ranks| {
        let mut plan = Plan::new(device);
        let x = plan.input("x", DType::F32, &[N]);
        let arena = plan.state_of_zeros("arena", DType::F32, &[5 * N]);
        let [from, to] =
            ["from", "to"].map(|name| plan.state_of_zeros(name, DType::F32, &[14 * N]));
        let kernel = device.kernel(&kernels::DEVICE, "add_to<float>")?;
        let add_wide = |plan: &mut Plan, blocks| {
            let all = arguments![x: from, out: to, n: to.len()];
            plan.launch(&kernel, Launch::new(blocks, 128), all)
        };
        let blocks = device.facts().multiprocessors;
        for part in [2, 3, 4] {
            add(&mut plan, x, arena.part(part * N, N))?;
        }
        add_wide(&mut plan, blocks)?; // A block for each multiprocessor.
        add_wide(&mut plan, blocks + 1)?; // It moves 28 parts: room for two.
        for part in [0, 1] {
            add(&mut plan, x, arena.part(part * N, N))?;
        }
        plan.all_reduce_when_written(ranks, arena, 0, pieces(N / 2))?;
        let expected = [
            "add",
            "add",
            "add",
            "arena[192..288]",
            "add",
            "arena[288..480]",
            "add",
            "add",
            "arena[0..96]",
            "add",
            "arena[96..192]",
        ];
        assert_eq!(steps_of(&plan), expected);
        let mut run = plan.bind().upload("x", &values(1.0 + ranks.rank() as f32))?.finish()?;
        run.run()?;
        assert_eq!(run.read(arena)?.values(), [3.0; 5 * N]);
        Ok(())
    });
    assert_eq!(outcomes, [Ok(()), Ok(())]);
}

#[test]
fn plans_with_other_collectives_are_refused() {
    for outcome in on_ranks(|device, ranks| {
        let mut plan = Plan::new(device);
        let state = plan.state_of_zeros("state", DType::F32, &[N]);
        plan.all_reduce(ranks, state.part(0, 8))?;
        let len = 9 + ranks.rank();
        plan.within("layer", |plan| plan.all_reduce(ranks, state.part(0, len)))?;
        plan.bind().finish().map(drop)
    }) {
        let expected = "expected all_reduce of 9 f32 of state[0..9], as rank 0 has it, got all_reduce of 10 f32 of state[0..10]";
        assert_eq!(outcome, Err(format!("rank 1: collective 1 of the plan: {expected}")));
    }
}

/// Each rank's part of what is summed lies at another place of it, and yet the ranks call the same.
#[test]
fn parts_are_summed_where_they_lie() {
    let outcomes = on_ranks(|device, ranks| {
        let mut plan = Plan::new(device);
        let x = plan.input("x", DType::F32, &[N]);
        let sum = plan.state_of_zeros("sum", DType::F32, &[N]);
        add(&mut plan, x, sum)?;
        let own = sum.part(ranks.rank() * N / 2, N / 2);
        plan.together(ranks, Collective::ReduceScatter, &[(sum, own)])?;
        assert_eq!(plan.collectives()[0].of, "sum");
        plan.together(ranks, Collective::AllGather, &[(own, sum)])?;
        let mut run = plan.bind().upload("x", &values(1.0 + ranks.rank() as f32))?.finish()?;
        run.run()?;
        Ok(run.read(sum)?.values())
    });
    assert_eq!(outcomes, [Ok(vec![3.0; N]), Ok(vec![3.0; N])]);
}

#[test]
fn slots_that_no_collective_takes_are_refused() {
    let outcomes = on_ranks(|device, ranks| {
        let mut plan = Plan::new(device);
        let x = plan.input("x", DType::F32, &[N]);
        let out = plan.output("out", DType::F32, &[2 * N]);
        let halves = plan.output("halves", DType::BF16, &[N]);
        let records = plan.records("pair", 8, N);
        let mut refused = |collective, pairs: &[(Slot, Slot)], said: &str| {
            let error = plan.together(ranks, collective, pairs).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        };
        use Collective::{AllGather, AllReduce, AllToAll, ReduceScatter};
        refused(AllReduce, &[(x, x)], "expected a slot to write to, got the input 'x'");
        refused(AllReduce, &[(x, halves)], "expected f32, got bf16");
        refused(AllReduce, &[(records, records)], "expected numbers, got pair");
        refused(AllReduce, &[(x, out)], "expected 96 elements into 96, got 96 into 192");
        refused(AllGather, &[(x, out.part(0, N))], "expected 96 elements into 192, got 96 into 96");
        refused(ReduceScatter, &[(x, out)], "expected 384 elements into 192");
        refused(AllToAll, &[(x, out)], "expected 96 elements into 96, got 96 into 192");
        let apart = "expected memory that lies apart";
        refused(AllToAll, &[(out, out)], apart);
        refused(AllReduce, &[(out.part(0, 8), out.part(4, 8))], apart);
        refused(
            AllReduce,
            &[(out.part(0, 8), out.part(0, 8)), (x.part(0, 8), out.part(7, 8))],
            apart,
        );
        let error = plan.all_reduce_when_written(ranks, out, 0, pieces(0)).unwrap_err().to_string();
        assert_eq!(error, "elements of a piece: expected at least 1, got 0");
        assert!(plan.is_empty());
        plan.together(ranks, AllGather, &[(x, out)])?;
        // In place is what a rank's own part is.
        let first = plan.together(ranks, ReduceScatter, &[(out, out.part(0, N))]);
        assert_eq!(first.is_ok(), ranks.rank() == 0);
        Ok(())
    });
    assert_eq!(outcomes, [Ok(()), Ok(())]);
}
