//! Training on several devices, which are emulated ones in threads of this process.
#![allow(missing_docs)]

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use lab_device::{Communicator, DType, Device, Group, Mode};
use lab_harness::Tensors;
use lab_lm::{
    Checkpoint, Config, Error, Mixer, Mixers, Model, Ranks, Schedule, SumPiece, Sums, Tokens,
    Trainer,
};
use lab_training::Step as _;

const STEPS: usize = 50;

/// Two blocks, one of which is attention; one matrix for what comes in and what goes out.
fn model() -> Model {
    Model { hidden: 24, tied: true, ..Model::xlstm(19, 64, 2, 2) }
        .with_mixers("1 vlstm : 1 attention".parse().expect("a pattern"), Some(1))
}

fn config(batch: usize) -> Config {
    Config { window: 16, batch, schedule: Schedule::constant(3e-3), ..Config::default() }
}

/// Words with a target each, of which some have none: no two ranks have as many of them.
fn data() -> (Tokens, Vec<usize>) {
    let id = |n: usize| ((n * n / 3 + n % 7 * 5) % 19) as i32;
    let ids: Vec<i32> = (0..1200).map(id).collect();
    let target = |n: usize| if n.is_multiple_of(11) || n / 64 % 5 == 1 { -1 } else { id(n + 1) };
    let targets = Some((0..ids.len()).map(target).collect());
    let data = Tokens { ids, targets, files: None };
    let starts = data.starts(16);
    (data, starts)
}

/// What each of so many ranks makes of its end of the group.
fn on_ranks<T: Send>(
    world: usize,
    mode: Mode,
    work: impl Fn(&Device, Group) -> Result<T, Error> + Sync,
) -> Vec<Result<T, String>> {
    let groups = Group::of_threads(world, Duration::from_secs(60));
    thread::scope(|scope| {
        let work = &work;
        let begin = |group| {
            scope.spawn(move || {
                work(&Device::emulator_in(mode).unwrap(), group).map_err(|e| e.to_string())
            })
        };
        let all: Vec<_> = groups.into_iter().map(begin).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    })
}

/// All losses, and where the training stands.
type Trained = (Vec<f64>, Checkpoint);

fn losses_of(trainer: &mut Trainer, steps: usize) -> Result<Vec<f64>, Error> {
    let mut losses = Vec::new();
    while losses.len() < steps {
        let before = trainer.position().step;
        let all = match trainer.run((steps - losses.len()).min(7))? {
            Some(epoch) => epoch.losses,
            None => trainer.losses()?,
        };
        losses.extend(&all[before..]);
    }
    Ok(losses)
}

/// From the start or from a checkpoint, of a configuration whose batch is that of all ranks.
fn train(world: usize, config: Config, from: Option<&Checkpoint>, steps: usize) -> Vec<Trained> {
    train_by(world, config, from, steps, false, Sums::default())
}

/// The same, where each rank may have only a part of the optimizer's state, and gradients are summed in this way.
fn train_by(
    world: usize,
    config: Config,
    from: Option<&Checkpoint>,
    steps: usize,
    shard_optimizer: bool,
    sums: Sums,
) -> Vec<Trained> {
    train_on(world, config, from, steps, shard_optimizer, sums, Communicator::new)
}

/// The same, of ranks that this connects.
fn train_on(
    world: usize,
    config: Config,
    from: Option<&Checkpoint>,
    steps: usize,
    shard_optimizer: bool,
    sums: Sums,
    connect: fn(&Device, Group) -> Result<Arc<Communicator>, lab_device::Error>,
) -> Vec<Trained> {
    let (data, starts) = data();
    if world == 1 {
        let device = Device::emulator_in(Mode::Plain).unwrap();
        let mut trainer = match from {
            Some(from) => Trainer::resume(&device, from, &data, &starts).unwrap(),
            None => Trainer::new(&device, model(), config, &data, &starts).unwrap(),
        };
        let losses = losses_of(&mut trainer, steps).unwrap();
        return vec![(losses, trainer.checkpoint().unwrap())];
    }
    let all = on_ranks(world, Mode::Plain, |device, group| {
        let communicator = connect(device, group)?;
        let ranks = Some(Ranks { communicator, shard_optimizer, sums });
        let mut trainer = match from {
            Some(from) => Trainer::resume_rank(device, from, &data, &starts, ranks)?,
            None => Trainer::of_rank(device, model(), config, &data, &starts, ranks)?,
        };
        Ok((losses_of(&mut trainer, steps)?, trainer.checkpoint()?))
    });
    all.into_iter().map(Result::unwrap).collect()
}

fn largest_difference(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, |most, d| {
        assert!(!d.is_nan());
        d.max(most)
    })
}

fn same(a: &Tensors, b: &Tensors) -> bool {
    a.len() == b.len() && a.iter().all(|(name, tensor)| b[name].bytes == tensor.bytes)
}

#[test]
fn ranks_have_the_loss_curve_of_one_with_all_of_the_batch() {
    // 75 windows: the last step of an epoch has three, so that of four ranks two have none.
    let of = config(8);
    let one = &train(1, of, None, STEPS)[0];
    assert!(one.0[STEPS - 1] < 0.8 * one.0[0], "it learns: {:?}", one.0);
    for world in [2, 4] {
        let all = train(world, of, None, STEPS);
        for (losses, checkpoint) in &all {
            let difference = largest_difference(losses, &one.0);
            assert!(difference <= 1e-5, "{world} ranks: {difference}");
            let first = &all[0];
            assert!(losses == &first.0 && same(&checkpoint.parameters, &first.1.parameters));
            assert!(same(&checkpoint.first, &first.1.first));
            assert!(same(&checkpoint.second, &first.1.second));
        }
        let again = train(world, of, None, 12);
        assert_eq!(again[0].0, all[0].0[..12], "the same bits");
    }
}

#[test]
fn parts_of_a_step_are_added_up_before_the_ranks_are() {
    let of = Config { accumulate: 3, ..config(4) };
    let one = &train(1, config(12), None, 12)[0];
    let two = &train(2, of, None, 12)[0];
    let difference = largest_difference(&two.0, &one.0);
    assert!(difference <= 1e-5, "{difference}");
}

/// How much is summed at once says when, not what: an element's sum is the same.
#[test]
fn pieces_of_any_size_give_the_same_bits() {
    let of = config(4);
    let by_size = &train(2, of, None, 5)[0];
    let bytes = 4 * model().parameters().len();
    for (piece, sums) in [(SumPiece::Bytes(1 << 10), 10..100), (SumPiece::All, 1..2)] {
        let piece = Sums { piece, ..Sums::default() };
        let other = &train_by(2, of, None, 5, false, piece)[0];
        assert_eq!(other.0, by_size.0, "{piece}");
        assert!(same(&other.1.parameters, &by_size.1.parameters), "{piece}");
        // How many there are, and that they are of all gradients together.
        let (data, starts) = data();
        let planned = on_ranks(2, Mode::Plain, |device, group| {
            let ranks = Ranks { sums: piece, ..Ranks::new(Communicator::new(device, group)?) };
            let trainer = Trainer::of_rank(device, model(), of, &data, &starts, Some(ranks))?;
            let all = trainer.step().binding().plan().collectives();
            Ok(all.into_iter().filter(|c| c.of.starts_with("gradients")).collect::<Vec<_>>())
        });
        for calls in planned.into_iter().map(Result::unwrap) {
            assert!(sums.contains(&calls.len()), "{piece}: {calls:?}");
            let summed: usize = calls.iter().map(|call| call.count * call.dtype.size()).sum();
            assert_eq!(summed, bytes, "{piece}");
        }
    }
}

/// Gradients that are rounded for their sum: what all ranks have is the same, and near what they have without.
#[test]
fn rounded_sums_are_near_exact_ones() {
    let of = config(4);
    let exact = &train(2, of, None, 8)[0];
    let rounded = Sums { dtype: DType::BF16, ..Sums::default() };
    let all = train_by(2, of, None, 8, false, rounded);
    let mut parts = train_by(2, of, None, 8, true, rounded);
    let at_once = Sums { piece: SumPiece::All, ..rounded };
    parts.extend(train_by(2, of, None, 8, true, at_once));
    let difference = largest_difference(&all[0].0, &exact.0);
    assert!(difference > 0.0 && difference <= 2e-3, "{difference}");
    for other in all.iter().chain(&parts) {
        assert_eq!(other.0, all[0].0);
        assert!(same(&other.1.parameters, &all[0].1.parameters));
    }
}

/// What a rank says of its gradients are the sums, wherever they are.
#[test]
fn gradients_of_parts_are_put_together() {
    let (data, starts) = data();
    let gradients = |shard_optimizer: bool, dtype: DType, copies: bool| {
        let all = on_ranks(3, Mode::Plain, |device, group| {
            let sums = Sums { dtype, ..Sums::default() };
            let communicator = match copies {
                true => Communicator::by_copies(device, group)?,
                false => Communicator::new(device, group)?,
            };
            let ranks = Ranks { communicator, shard_optimizer, sums };
            let mut trainer =
                Trainer::of_rank(device, model(), config(3), &data, &starts, Some(ranks))?;
            trainer.run(2)?;
            trainer.gradients()
        });
        let all: Vec<Tensors> = all.into_iter().map(Result::unwrap).collect();
        assert!(all.iter().all(|own| same(own, &all[0])), "sharded: {shard_optimizer}, {dtype}");
        all.into_iter().next().unwrap()
    };
    for dtype in [DType::F32, DType::BF16] {
        let whole = gradients(false, dtype, false);
        assert!(whole.values().all(|tensor| tensor.dtype == dtype), "{dtype}");
        assert!(same(&whole, &gradients(true, dtype, false)), "{dtype}");
        // What is sent is summed in f32.
        let sent = gradients(true, dtype, true);
        assert!(sent.values().all(|tensor| tensor.dtype == DType::F32), "{dtype}");
        if dtype == DType::F32 {
            assert!(same(&whole, &sent));
        }
    }
}

#[test]
#[ignore = "takes long: --include-ignored runs it"]
fn a_training_goes_on_with_another_number_of_ranks() {
    let of = config(8);
    let whole = &train(1, of, None, 30)[0];
    let two = &train(2, of, None, 10)[0];
    // A file is of no number of ranks.
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.safetensors");
    two.1.write(&path).unwrap();
    let read = Checkpoint::read(&path).unwrap();
    let one = &train(1, of, Some(&read), 10)[0];
    let four = &train(4, of, Some(&one.1), 10)[0];
    let all = [&two.0[..], &one.0, &four.0].concat();
    let difference = largest_difference(&all, &whole.0);
    assert!(difference <= 1e-5, "{difference}");
    // With as many ranks, the bits are those of a training that never stopped.
    let on = &train(2, of, Some(&read), 10)[0];
    let unbroken = &train(2, of, None, 20)[0];
    assert_eq!(on.0, unbroken.0[10..]);
    assert!(same(&on.1.parameters, &unbroken.1.parameters));
}

/// Bit for bit: the sum of an element has the same order in a part as in all. The norm has another, in f64: of the factor that
/// it gives in f32, no bit differs here.
#[test]
#[ignore = "takes long: --include-ignored runs it"]
fn a_part_of_the_state_for_each_rank_changes_nothing() {
    for (world, dtype) in [(2, DType::F32), (3, DType::F32), (2, DType::BF16)] {
        let of = Config { dtype, clip: Some(0.3), ..config(6) };
        let whole = train(world, of, None, 9);
        let at_once = Sums { piece: SumPiece::All, ..Sums::default() };
        let parts = train_by(world, of, None, 5, true, at_once);
        // From one to the other and back.
        let whole_on = train(world, of, Some(&parts[1].1), 2);
        let on = train_by(world, of, Some(&whole_on[0].1), 2, true, Sums::default());
        assert_eq!(parts[0].0, whole[0].0[..5], "{world} ranks in {dtype}");
        assert_eq!(on[0].0, whole[0].0[7..], "{world} ranks in {dtype}");
        for (_, own) in &on {
            let all = &whole[0].1;
            assert!(same(&own.parameters, &all.parameters), "{world} ranks in {dtype}");
            assert!(same(&own.first, &all.first) && same(&own.second, &all.second));
        }
    }
}

/// Gradients that the ranks send each other, and the optimizer adds up: in f32 the same bits, for the order is the same; in bf16 the sums
/// are not rounded again.
#[test]
fn gradients_that_are_sent_are_summed_as_others() {
    let pieces = Sums::default();
    for (world, dtype) in [(2, DType::F32), (3, DType::F32), (2, DType::BF16)] {
        let of = Config { dtype, clip: Some(0.3), ..config(6) };
        let summed = train_by(world, of, None, 4, true, pieces);
        let sent = train_on(world, of, None, 4, true, pieces, Communicator::by_copies);
        for (losses, checkpoint) in &sent {
            assert_eq!(*losses, summed[0].0, "{world} ranks in {dtype}");
            let all = &summed[0].1;
            assert!(same(&checkpoint.parameters, &all.parameters), "{world} ranks in {dtype}");
            assert!(same(&checkpoint.first, &all.first) && same(&checkpoint.second, &all.second));
        }
    }
    let of = config(4);
    let exact = &train(2, of, None, 8)[0];
    let rounded = Sums { dtype: DType::BF16, ..pieces };
    let sent = train_on(2, of, None, 8, true, rounded, Communicator::by_copies);
    let difference = largest_difference(&sent[0].0, &exact.0);
    assert!(difference > 0.0 && difference <= 2e-3, "{difference}");
    assert_eq!(sent[1].0, sent[0].0);
    assert!(same(&sent[1].1.parameters, &sent[0].1.parameters));
}

#[test]
fn parts_of_the_state_take_less_memory() {
    let (data, starts) = data();
    let bytes = |shard_optimizer: bool, piece: SumPiece| {
        let all = on_ranks(2, Mode::Plain, |device, group| {
            let communicator = Communicator::new(device, group)?;
            let sums = Sums { piece, ..Sums::default() };
            let ranks = Ranks { shard_optimizer, sums, ..Ranks::new(communicator) };
            let of = Config { dtype: DType::BF16, ..config(4) };
            let trainer = Trainer::of_rank(device, model(), of, &data, &starts, Some(ranks))?;
            Ok(trainer.step().binding().plan().peak_bytes())
        });
        all.into_iter().map(Result::unwrap).max().unwrap()
    };
    let parameters = model().parameters().len();
    // Masters and both moments in f32, of a half of the parameters; the parts are padded, each of them.
    for (piece, padded) in [(SumPiece::All, 1024), (SumPiece::BySize, 8192)] {
        let saved = bytes(false, piece) - bytes(true, piece);
        let is_near = saved.abs_diff(12 * parameters / 2) < padded;
        assert!(is_near, "{piece}: {saved} of {parameters} parameters");
    }
}

/// Each access is looked at: all that is summed was written, and nothing reads what is not.
#[test]
fn the_checks_find_nothing() {
    let (data, starts) = data();
    let [all, pieces] = [SumPiece::All, SumPiece::BySize];
    type Connect = fn(&Device, Group) -> Result<Arc<Communicator>, lab_device::Error>;
    let [sums, copies]: [Connect; 2] = [Communicator::new, Communicator::by_copies];
    for (shard_optimizer, dtype, piece, connect) in [
        (true, DType::F32, pieces, sums),
        (true, DType::BF16, all, sums),
        (true, DType::BF16, pieces, sums),
        (false, DType::BF16, pieces, sums),
        (true, DType::BF16, pieces, copies),
    ] {
        let all = on_ranks(2, Mode::Checked, |device, group| {
            let sums = Sums { dtype, piece };
            let ranks = Ranks { communicator: connect(device, group)?, shard_optimizer, sums };
            let of = config(2);
            let mut trainer = Trainer::of_rank(device, model(), of, &data, &starts, Some(ranks))?;
            trainer.run(1)?;
            trainer.checkpoint()?;
            Ok(())
        });
        let said = format!("sharded: {shard_optimizer}, {dtype}, {piece}");
        assert!(all.iter().all(Result::is_ok), "{said}: {all:?}");
    }
}

#[test]
fn ranks_that_differ_are_refused() {
    let (data, starts) = data();
    let other_data =
        Tokens { ids: data.ids.iter().rev().copied().collect(), targets: None, files: None };
    type Change = fn(&mut Model, &mut Config);
    let changes: [(&str, Change); 3] = [
        ("model: expected {", |model, _| model.tied = false),
        ("model: expected {", |model, _| {
            *model = model.with_mixers(Mixers::only(Mixer::Attention), None);
        }),
        ("configuration: expected {", |_, config| config.seed = 1),
    ];
    let refused = |said: &str, change: Option<Change>| {
        let all = on_ranks(3, Mode::Plain, |device, group| {
            let (mut model, mut config) = (model(), config(6));
            let is_other = group.rank() == 1;
            let ranks = Some(Ranks::new(Communicator::new(device, group)?));
            let data = match change {
                Some(change) if is_other => {
                    change(&mut model, &mut config);
                    &data
                }
                None if is_other => &other_data,
                _ => &data,
            };
            Trainer::of_rank(device, model, config, data, &starts, ranks)?;
            Ok(())
        });
        for outcome in all {
            let error = outcome.unwrap_err();
            assert!(error.starts_with("rank 1: "), "{error}");
            assert!(error.contains(said), "{error}");
        }
    };
    changes.into_iter().for_each(|(said, change)| refused(said, Some(change)));
    refused("data and samples: expected ", None);
}

/// One goes on from a file, the other begins anew.
#[test]
fn ranks_that_stand_elsewhere_are_refused() {
    let (data, starts) = data();
    let from = &train(1, config(2), None, 2)[0].1;
    let all = on_ranks(2, Mode::Plain, |device, group| {
        let is_first = group.rank() == 0;
        let ranks = Some(Ranks::new(Communicator::new(device, group)?));
        if is_first {
            Trainer::resume_rank(device, from, &data, &starts, ranks)?
        } else {
            Trainer::of_rank(device, model(), config(2), &data, &starts, ranks)?
        };
        Ok(())
    });
    for outcome in all {
        let error = outcome.unwrap_err();
        let expected = "rank 1: position: expected epoch 0, step 2 behind a loss of ";
        assert!(error.starts_with(expected), "{error}");
        assert!(error.ends_with(", as rank 0 has it, got epoch 0, step 0"), "{error}");
    }
}

#[test]
fn a_batch_is_shared_evenly_or_not_at_all() {
    let (data, starts) = data();
    let all = on_ranks(2, Mode::Plain, |device, group| {
        let ranks = Some(Ranks::new(Communicator::new(device, group)?));
        Trainer::of_rank(device, model(), config(3), &data, &starts, ranks)?;
        Ok(())
    });
    for outcome in all {
        let error = outcome.unwrap_err();
        assert_eq!(error, "batch: expected a multiple of 2, the number of ranks, got 3");
    }
}

/// One ends in the middle of a training: the others do not wait for ever.
#[test]
fn a_rank_that_ends_ends_all() {
    let (data, starts) = data();
    let all = on_ranks(3, Mode::Plain, |device, group| {
        let own = group.rank();
        let ranks = Some(Ranks::new(Communicator::new(device, group)?));
        let mut trainer = Trainer::of_rank(device, model(), config(6), &data, &starts, ranks)?;
        trainer.run(if own == 2 { 3 } else { 9 })?;
        Ok(())
    });
    assert_eq!(all[2], Ok(()));
    for outcome in &all[..2] {
        let error = outcome.as_ref().unwrap_err();
        assert!(error.starts_with("rank 2: collective "), "{error}");
        assert!(
            error.ends_with(", all_reduce of 1 i32 of scratch of count: has ended before it"),
            "{error}"
        );
    }
}
