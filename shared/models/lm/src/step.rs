//! A training step: its slots, and what it launches.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use lab_device::{Collective, Communicator, DType, Device, Launch};
use lab_harness::binding::StepTime;
use lab_harness::plan::{Pieces, Plan, Slot};
use lab_harness::progress::{COUNTS, NUMBERS};
use lab_harness::{Binder, Binding, Error, Tensor, Tensors, arguments};
use lab_layers::{Documents, Dropouts, HeadLoss, Parameters, Tape};
use lab_training::{self as training, EpochSlots, Position, Ranks};
use passes::{AdamW, CrossEntropy, Progress, Squares};

use crate::config::EPS;
use crate::kernels;
use crate::streams::Streams;
use crate::sums::add_rounding;
use crate::{Config, Model, TokenFiles, Tokens};

/// A binding with what the host reads and writes of it.
pub struct Step {
    binding: Binding,
    parameters: Parameters,
    slots: Slots,
    /// Where each rank has only its part of the optimizer's state.
    shards: Option<(Shard, Arc<Communicator>)>,
    /// What gives it the parameters that a step begins by gathering.
    gather: Option<Binding>,
    /// What it hands to the next, where states are carried.
    streams: Streams,
    /// Where tokens stay in files, the windows of the steps to come.
    fed: Option<Fed>,
    phases: Vec<training::Phase>,
}

/// Windows that the device has of tokens in files: those of some steps, each with its last target, in the order in which they come.
struct Fed {
    files: Arc<TokenFiles>,
    /// Of the epoch, their first tokens.
    order: Vec<usize>,
    window: usize,
    of_step: usize,
    tokens: Slot,
}

/// Steps whose windows the device has at once.
const FED_STEPS: usize = 16;

impl Fed {
    /// The same windows as the device counts them: it has room for those of so many steps.
    fn places(&self) -> Vec<i32> {
        let room = FED_STEPS * self.of_step;
        (0..self.order.len()).map(|n| (n % room * (self.window + 1)) as i32).collect()
    }

    /// The tokens of the room, with the windows of these steps in their places.
    fn read(&self, steps: Range<usize>) -> Result<Vec<i32>, Error> {
        let (room, each) = (FED_STEPS * self.of_step, self.window + 1);
        let mut ids = vec![0; room * each];
        let end = (steps.end * self.of_step).min(self.order.len());
        for n in steps.start * self.of_step..end {
            let own = self.files.read(self.order[n], each)?;
            ids[n % room * each..][..each].copy_from_slice(&own);
        }
        Ok(ids)
    }
}

/// Tokens that the device has: all of the data, or room for those of some steps.
fn tokens_there(data: &Tokens, config: &Config) -> usize {
    match data.files {
        Some(_) => FED_STEPS * config.windows_of_step() * (config.window + 1),
        None => data.ids.len(),
    }
}

/// This rank's part of an arena, which is cut into pieces: of each, each rank has as many elements, one behind the other.
#[derive(Clone, Copy, Debug)]
struct Shard {
    rank: usize,
    world: usize,
    pieces: usize,
    /// Of a rank's part of a piece.
    each: usize,
}

impl Shard {
    /// In pieces of about so many elements.
    fn new(arena: usize, ranks: &Communicator, piece: usize) -> Self {
        let (rank, world, pieces) = (ranks.rank(), ranks.world(), arena.div_ceil(piece));
        // Parts begin at whole wide loads.
        let each = arena.div_ceil(pieces * world).next_multiple_of(32);
        // Of parts that are rounded up there may be fewer.
        Self { rank, world, pieces: arena.div_ceil(each * world), each }
    }

    fn of_ranks(arena: usize, Ranks { communicator, sums, .. }: &Ranks) -> Self {
        Self::new(arena, communicator, sums.piece.elements(arena, sums.dtype))
    }

    /// Elements of this rank's part.
    fn len(self) -> usize {
        self.pieces * self.each
    }

    /// Elements of an arena with what the last part has behind its end.
    fn padded(self) -> usize {
        self.len() * self.world
    }

    /// A piece of an arena.
    fn piece(self, n: usize, arena: Slot) -> Slot {
        let len = self.each * self.world;
        arena.part(n * len, len)
    }

    /// This rank's part of a piece, in an arena.
    fn own(self, n: usize, arena: Slot) -> Slot {
        self.piece(n, arena).part(self.rank * self.each, self.each)
    }

    /// The same in what holds nothing but this rank's part.
    fn part(self, n: usize, own: Slot) -> Slot {
        own.part(n * self.each, self.each)
    }

    /// So many of the first elements of its part of a piece decay, of an arena of which so many do.
    fn decayed(self, n: usize, of_arena: usize) -> usize {
        of_arena.saturating_sub((n * self.world + self.rank) * self.each).min(self.each)
    }

    /// The arena, with zeros behind it.
    fn pad(self, arena: Tensor) -> Tensor {
        let Tensor { dtype, mut bytes, .. } = arena;
        bytes.resize(self.padded() * dtype.size(), 0);
        Tensor { dtype, shape: vec![self.padded()], bytes }
    }

    /// Its part of one.
    fn cut(self, arena: Tensor) -> Tensor {
        let Tensor { dtype, bytes, .. } = self.pad(arena);
        let parts: Vec<&[u8]> = bytes.chunks(self.each * dtype.size()).collect();
        let own: Vec<&[u8]> = parts.into_iter().skip(self.rank).step_by(self.world).collect();
        let bytes = own.concat();
        Tensor { dtype, shape: vec![self.len()], bytes }
    }

    /// Of what the ranks have sent for this one's part, the sums, as the optimizer makes them.
    fn sum_of_ranks(self, received: &[f64]) -> Vec<f32> {
        let pieces = received.chunks(self.each * self.world);
        let sums = pieces.flat_map(|piece| {
            (0..self.each).map(|n| {
                let of_ranks = piece[n..].iter().step_by(self.each);
                of_ranks.map(|g| *g as f32).reduce(|sum, g| sum + g).unwrap_or_default()
            })
        });
        sums.collect()
    }

    /// Adds what gives all ranks all of an arena, of which each has its part: of piece `n` that of `part_of(n)`.
    fn add_gather(
        self,
        plan: &mut Plan,
        ranks: &Arc<Communicator>,
        part_of: impl Fn(usize) -> Slot,
        all: Slot,
    ) -> Result<(), Error> {
        let pairs: Vec<_> = (0..self.pieces).map(|n| (part_of(n), self.piece(n, all))).collect();
        plan.together(ranks, Collective::AllGather, &pairs)
    }

    /// The same where the parts lie in it, of these pieces one by one: what reads a piece waits for no other.
    fn add_gathers(
        self,
        plan: &mut Plan,
        ranks: &Arc<Communicator>,
        pieces: &[usize],
        all: Slot,
    ) -> Result<(), Error> {
        let mut pieces = pieces.iter();
        pieces.try_for_each(|&n| {
            plan.together(ranks, Collective::AllGather, &[(self.own(n, all), self.piece(n, all))])
        })
    }
}

// Names of slots that an evaluation of the same model shares.
const TOKENS: &str = "tokens";
pub(crate) const TARGETS: &str = "targets";
const MASTERS: &str = "masters";
const WEIGHTS: &str = "weights";
const GRADIENTS: &str = "gradients";
const MOMENTS: [&str; 2] = ["first", "second"];

/// What the host reads and writes.
#[derive(Clone, Copy)]
struct Slots {
    of_epoch: EpochSlots,
    masters: Slot,
    /// The sums over all ranks: of gradients that are rounded for them, in a slot of their own; of shards, this rank's part alone. Where
    /// ranks send each other their gradients, those of all ranks for this rank's part, not summed.
    gradients: Slot,
    /// Whether they are that.
    unsummed: bool,
    /// Their type.
    sums: DType,
    moments: [Slot; 2],
}

/// Slots of the windows that a step reads, and the launch that fills them.
pub(crate) struct Windows {
    /// i32 \[B S\].
    pub(crate) inputs: Slot,
    /// i32 \[B S\]; −1 for none.
    pub(crate) targets: Slot,
}

/// Tokens and their targets, as inputs of a plan: where none has one of its own, the next token.
pub(crate) fn add_tokens_and_targets(
    plan: &mut Plan,
    tokens: usize,
    has_targets: bool,
) -> [Slot; 2] {
    let ids = plan.input(TOKENS, DType::I32, &[tokens]);
    let wanted = if has_targets {
        plan.input(TARGETS, DType::I32, &[tokens])
    } else {
        ids.part(1, tokens - 1)
    };
    [ids, wanted]
}

/// Which of a step's windows a device has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    /// The first.
    pub(crate) first: usize,
    /// How many.
    pub(crate) windows: usize,
    /// Of a step of all devices.
    pub(crate) of_step: usize,
}

impl Share {
    /// Of one device alone.
    pub(crate) fn all(windows: usize) -> Self {
        Self { first: 0, windows, of_step: windows }
    }

    /// Of one rank of several: as many as the others, behind those of the ranks before it.
    fn of_rank(of_step: usize, rank: usize, world: usize) -> Self {
        let windows = of_step / world;
        Self { first: rank * windows, windows, of_step }
    }
}

/// Adds the launch that takes the windows of a step from the tokens and their targets.
pub(crate) fn add_windows(
    plan: &mut Plan,
    [tokens, wanted]: [Slot; 2],
    order: Slot,
    counts: Slot,
    window: usize,
    share: Share,
) -> Result<Windows, Error> {
    let Share { first, windows: batch, of_step } = share;
    let [inputs, targets] = [(); 2].map(|()| plan.scratch(DType::I32, batch * window));
    let gather = plan.device().kernel(&kernels::BATCH, "gather_tokens")?;
    let windows = order.len();
    let all = arguments![tokens, wanted, order, counts, inputs, targets, windows, S: window, B: batch, first, G: of_step];
    plan.launch(&gather, gather.grid_over(batch * window)?, all)?;
    Ok(Windows { inputs, targets })
}

impl Step {
    /// Gives another plan on the same device this one's working copy of the parameters, as its slot `name`: what it reads there are
    /// always those of the last step.
    pub(crate) fn share_weights<'a>(
        &self,
        binder: Binder<'a>,
        name: &str,
    ) -> Result<Binder<'a>, Error> {
        let has_copy = self.binding.plan().slot(WEIGHTS).is_some();
        // What shards have behind the arena's end, nobody else reads.
        binder.share_first(name, &self.binding, if has_copy { WEIGHTS } else { MASTERS })
    }

    /// The same of the tokens.
    pub(crate) fn share_tokens<'a>(
        &self,
        binder: Binder<'a>,
        name: &str,
    ) -> Result<Binder<'a>, Error> {
        binder.share(name, &self.binding, TOKENS)
    }

    /// Bytes of device memory that a step takes, all told.
    ///
    /// # Errors
    /// As those of a training's start.
    pub fn bytes(device: &Device, model: &Model, config: &Config) -> Result<usize, Error> {
        model.check()?;
        config.check()?;
        let parameters = model.parameters();
        let Planned { plan, .. } = plan(
            device,
            model,
            config,
            &parameters,
            [config.window + 1, config.windows_of_step()],
            false,
            None,
        )?;
        Ok(plan.peak_bytes())
    }
}

impl Step {
    /// The time of each launch of a step, with first parameters and tokens that mean nothing.
    ///
    /// # Errors
    /// As those of a training's start.
    pub fn times(
        device: &Device,
        model: &Model,
        config: &Config,
        runs: usize,
    ) -> Result<Vec<StepTime>, training::Error> {
        // Tokens are made of these.
        model.check()?;
        config.check()?;
        training::count("runs", runs, 1 << 10)?;
        let of_step = config.windows_of_step();
        let tokens = config.window * of_step;
        let id = |n: usize| (n * 7919 % model.vocabulary) as i32;
        let data = Tokens::of_ids((0..=tokens).map(id).collect());
        // The windows of a step for each run.
        let windows = (runs + 2) * of_step;
        let starts: Vec<usize> = (0..windows).map(|n| n % of_step * config.window).collect();
        <Self as training::Step>::check(model, config, &data, &starts)?;
        let parameters = model.parameters().initial(config.seed);
        let mut step =
            <Self as training::Step>::new(device, model, config, &data, starts.len(), &parameters)?;
        let of = step.slots.of_epoch;
        let [_, numbers] = Progress::first(1.0);
        step.binding.write(of.numbers, &numbers)?;
        let rates = vec![1e-4; runs + 2];
        step.binding.write(of.rates, &Tensor::new(&[rates.len()], &rates))?;
        let order: Vec<i32> = starts.iter().map(|&start| start as i32).collect();
        step.binding.write(of.order, &Tensor::new(&[order.len()], &order))?;
        Ok(step.binding.time_steps(runs)?)
    }
}

impl Step {
    /// An arena as the host knows it, without what shards have behind its end.
    fn arena(&self, padded: Tensor) -> Tensor {
        let Tensor { dtype, mut bytes, .. } = padded;
        let len = self.parameters.len();
        bytes.truncate(len * dtype.size());
        Tensor { dtype, shape: vec![len], bytes }
    }

    /// What a slot holds; of a part of an arena, all of it, which all ranks must ask for then: it is put together in the place of the
    /// gradients, which the next step makes anew.
    fn whole(&self, name: &str, slot: Slot) -> Result<Tensor, Error> {
        let Some((shard, communicator)) =
            self.shards.as_ref().filter(|(shard, _)| shard.len() == slot.len())
        else {
            return Ok(self.arena(self.binding.read(slot)?));
        };
        let mut plan = Plan::new(self.binding.plan().device());
        let part = plan.state("part", DType::F32, &[shard.len()]);
        let all = plan.state("all", DType::F32, &[shard.padded()]);
        shard.add_gather(&mut plan, communicator, |n| shard.part(n, part), all)?;
        let binder = plan.bind().share("part", &self.binding, name)?;
        let mut gather = binder.share("all", &self.binding, GRADIENTS)?.finish()?;
        gather.run()?;
        Ok(self.arena(gather.read(all)?))
    }
}

/// The plan of a step, and what the host has of it.
struct Planned {
    plan: Plan,
    slots: Slots,
    streams: Streams,
    /// Pieces of the parameters that the next step gathers.
    gathered_next: Vec<usize>,
}

/// The plan of a step on so many tokens, of an epoch of so many windows; of one rank of several where there is a communicator.
fn plan(
    device: &Device,
    model: &Model,
    config: &Config,
    parameters: &Parameters,
    [tokens, windows]: [usize; 2],
    has_targets: bool,
    ranks: Option<&Ranks>,
) -> Result<Planned, Error> {
    let Config { dtype, window, batch, accumulate, betas, weight_decay, clip, .. } = *config;
    let shards = ranks.filter(|ranks| ranks.shard_optimizer);
    let shard = shards.map(|ranks| Shard::of_ranks(parameters.len(), ranks));
    // Each rank gets others' gradients for its part, and the optimizer adds them up.
    let by_copies = shards.is_some_and(|ranks| ranks.communicator.copies().is_ok());
    let sums = ranks.map(|ranks| ranks.sums).unwrap_or_default();
    let ranks = ranks.map(|ranks| &ranks.communicator);
    let (rank, world) = ranks.map_or((0, 1), |ranks| (ranks.rank(), ranks.world()));
    if !batch.is_multiple_of(world) {
        return Err(Error::bad(
            "batch",
            format!("a multiple of {world}, the number of ranks"),
            batch,
        ));
    }
    let (of_step, batch) = (config.windows_of_step(), batch / world);
    let share = Share::of_rank(of_step, rank, world);
    let steps = windows.div_ceil(of_step);
    let mut plan = Plan::new(device);
    let len = parameters.len();
    let data = add_tokens_and_targets(&mut plan, tokens, has_targets);
    // What begins with zeros is made so where it lies: no host need have it.
    let mut zeros = |name: &str, dtype, len: usize| plan.state_of_zeros(name, dtype, &[len]);
    let order = zeros("order", DType::I32, windows);
    let counts = zeros("counts", DType::I64, 2 * COUNTS);
    let numbers = zeros("numbers", DType::F64, 2 * NUMBERS);
    let rates = zeros("rates", DType::F64, steps);
    let losses = zeros("losses", DType::F64, steps);
    // Of all parameters, and of those whose state this rank has.
    let (all, own) = shard.map_or((len, len), |shard| (shard.padded(), shard.len()));
    let gradients = zeros(GRADIENTS, DType::F32, all);
    let summed = match sums.dtype {
        DType::F32 => gradients,
        dtype => zeros("rounded gradients", dtype, all),
    };
    let received = if by_copies { zeros("received gradients", sums.dtype, all) } else { summed };
    let moments = MOMENTS.map(|name| zeros(name, DType::F32, own));
    let has_copy = dtype != DType::F32;
    let masters = plan.state(MASTERS, DType::F32, &[if has_copy { own } else { all }]);
    let copy = has_copy.then(|| plan.state(WEIGHTS, dtype, &[all]));
    let progress = Progress { counts, numbers };
    let loss = plan.scratch(DType::F64, 1);

    let windows = add_windows(&mut plan, data, order, counts, window, share)?;
    let row_losses = plan.scratch(DType::F32, share.windows * window);
    // Of all parts and ranks: each adds its share of the mean's gradient.
    let count = CrossEntropy::add_count(&mut plan, windows.targets, model.vocabulary)?;
    if let Some(ranks) = ranks {
        plan.within("count", |plan| plan.all_reduce(ranks, count))?;
    }
    let weights = copy.unwrap_or(masters);
    // What one rank drops says nothing about what another does.
    let seed = config.seed.wrapping_add((rank as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let (rate, step) = (config.dropout, progress.steps_taken());
    let streams = Streams::add(&mut plan, model, config, counts)?;
    // What ranks sum is final only then.
    let squares =
        ranks.is_none().then(|| Rc::new(RefCell::new(Squares::new(&mut plan, len / 64 + 64))));
    // Nobody else writes the gradients of one device.
    let vocabulary = [model.vocabulary];
    let used = || plan.state_of_zeros("used tokens", DType::I32, &vocabulary);
    let used_tokens = ranks.is_none().then(used);
    let mut first_of_part = 0;
    let mut dropouts = Dropouts { rate, seed, step, next: 0 };
    for part in 0..accumulate {
        let rows = batch * window;
        let of_part = |slot: Slot| slot.part(part * rows, rows);
        // The head's gradient is made with the loss, before the backward pass of the blocks.
        first_of_part = plan.len();
        let mut tape = Tape::new(&mut plan, dtype, parameters, weights, Some(gradients))
            .with_dropout(Some(dropouts))
            .with_used_tokens(used_tokens);
        if part > 0 {
            tape = tape.accumulating();
        }
        if part + 1 == accumulate {
            tape = tape.with_squares(squares.clone());
        }
        let inputs = of_part(windows.inputs);
        tape = tape.with_documents(documents(config, inputs));
        let y = model.forward(&mut tape, inputs, [batch, window], |n| streams.memory(part, n))?;
        let head = HeadLoss {
            targets: of_part(windows.targets),
            vocabulary: model.vocabulary,
            cap: model.logit_cap(),
            z_loss: config.z_loss as f32,
            count,
            row_losses: of_part(row_losses),
            loss_scale: Some(progress.loss_scale()),
            is_tied: model.tied,
            rows_at_once: config.logit_rows,
        };
        tape.linear_cross_entropy(model.head(), y, head)?;
        dropouts = tape.dropouts().expect("those that it was given");
        if part + 1 == accumulate {
            // Its own part of the mean over all ranks, whose sum is there long before anybody asks for it.
            let plan = tape.plan();
            CrossEntropy::add_mean(plan, row_losses, count, Some(loss))?;
            if let Some(ranks) = ranks {
                plan.within("loss", |plan| plan.all_reduce(ranks, loss))?;
            }
        }
        tape.add_backward(&[])?;
    }
    // In the order in which their sums come.
    let mut summed_pieces: Vec<Vec<usize>> = Vec::new();
    if let Some(ranks) = ranks {
        let elements = match shard {
            Some(shard) => shard.each * world,
            None => sums.piece.elements(len, sums.dtype),
        };
        // A sum for all sends as much as one of which each gets its part, and as much again.
        let times = if shard.is_some() { 1 } else { 2 };
        let bytes = times * elements * sums.dtype.size() * (world - 1) / world;
        let pieces = Pieces { elements, bytes };
        plan.add_when_written(gradients, first_of_part, pieces, |plan, parts| {
            let round = |plan: &mut Plan, part: Slot| {
                let rounded = summed.part(part.start(), part.len());
                if sums.dtype != DType::F32 {
                    add_rounding(plan, part, rounded)?;
                }
                Ok::<_, Error>(rounded)
            };
            let Some(shard) = shard else {
                let rounded = parts.iter().map(|&part| round(plan, part));
                let pairs: Vec<_> =
                    rounded.map(|part| part.map(|part| (part, part))).collect::<Result<_, _>>()?;
                return plan.together(ranks, Collective::AllReduce, &pairs);
            };
            let numbers = parts.iter().flat_map(|part| {
                let first = part.start() / elements;
                first..first + part.len() / elements
            });
            let numbers: Vec<usize> = numbers.collect();
            // The sum of one is made while the next is rounded.
            for &n in &numbers {
                round(plan, shard.piece(n, gradients))?;
                let whole = shard.piece(n, summed);
                let (collective, to) = if by_copies {
                    (Collective::AllToAll, shard.piece(n, received))
                } else {
                    (Collective::ReduceScatter, shard.own(n, summed))
                };
                plan.together(ranks, collective, &[(whole, to)])?;
            }
            summed_pieces.push(numbers);
            Ok(())
        })?;
    }
    // The last were added first.
    let summed_pieces: Vec<usize> = summed_pieces.into_iter().rev().flatten().collect();

    let record = plan.device().kernel(&kernels::BATCH, "record_loss")?;
    plan.launch(&record, Launch::new(1, 1), arguments![loss, counts, losses])?;
    let adamw = AdamW {
        dtype,
        parameters: len,
        decayed: parameters.decayed(),
        betas,
        eps: EPS,
        weight_decay,
        max_norm: clip,
        scale_doubles_after: None,
        p: masters,
        copy,
        g: summed,
        gradient: sums.dtype,
        ranks: 1,
        m: moments[0],
        v: moments[1],
        rates,
        loss,
        progress,
    };
    let mut gathered_next = Vec::new();
    plan.within("adamw", |plan| {
        if let Some(squares) = &squares {
            return adamw.add_behind(plan, &squares.borrow());
        }
        let (Some(shard), Some(ranks)) = (shard, ranks) else { return adamw.add(plan) };
        let part = |n: usize| AdamW {
            parameters: shard.each,
            decayed: shard.decayed(n, parameters.decayed()),
            p: if has_copy { shard.part(n, masters) } else { shard.own(n, masters) },
            copy: copy.map(|copy| shard.own(n, copy)),
            g: if by_copies { shard.piece(n, received) } else { shard.own(n, summed) },
            ranks: if by_copies { world } else { 1 },
            m: shard.part(n, moments[0]),
            v: shard.part(n, moments[1]),
            ..adamw
        };
        // Of those whose sums are there, while the last are made.
        let parts: Vec<AdamW> = summed_pieces.iter().map(|&n| part(n)).collect();
        let squares = AdamW::add_squares(&parts, None, plan)?;
        // Those of all parts.
        plan.all_reduce(ranks, squares)?;
        // In the order in which the forward pass reads them. What is read first goes to all ranks beside the updates of the others, and
        // these beside the next step's forward pass.
        let mut pieces: Vec<usize> = (0..shard.pieces).collect();
        pieces.sort_by_key(|&n| plan.first_use(shard.piece(n, weights)));
        let (first, others) = pieces.split_at(pieces.len() / 2);
        for &n in first {
            part(n).add_update(plan, squares)?;
            shard.add_gathers(plan, ranks, &[n], weights)?;
        }
        for &n in others {
            part(n).add_update(plan, squares)?;
        }
        gathered_next = others.to_vec();
        plan.add_first(|plan| shard.add_gathers(plan, ranks, others, weights))
    })?;
    let of_epoch = EpochSlots { order, counts, numbers, rates, losses };
    let (gradients, sums) = (received, sums.dtype);
    let slots = Slots { of_epoch, masters, gradients, unsummed: by_copies, sums, moments };
    Ok(Planned { plan, slots, streams, gathered_next })
}

/// How the documents of these tokens begin, where a window may have several.
pub(crate) fn documents(config: &Config, tokens: Slot) -> Option<Documents> {
    config.document.map(|first| Documents { tokens, first })
}

impl training::Step for Step {
    type Model = Model;
    type Data = Tokens;
    const SAMPLES: &'static str = "windows";

    fn check(
        model: &Model,
        config: &Config,
        data: &Tokens,
        starts: &[usize],
    ) -> Result<(), training::Error> {
        model.check()?;
        config.check()?;
        config.check_for(model, starts)?;
        training::parameters_fit(model.parameters().iter().map(|p| p.shape.clone()))?;
        Ok(data.check(model.vocabulary, starts, config.window)?)
    }

    fn initial(model: &Model, config: &Config) -> Tensors {
        model.parameters().initial(config.seed)
    }

    fn first_scale(_: &Config) -> f64 {
        1.0
    }

    fn digest(data: &Tokens, starts: &[usize]) -> String {
        data.digest(starts)
    }

    fn new(
        device: &Device,
        model: &Model,
        config: &Config,
        data: &Tokens,
        windows: usize,
        all: &Tensors,
    ) -> Result<Self, training::Error> {
        Self::of_rank(device, model, config, data, windows, all, None)
    }

    fn of_rank(
        device: &Device,
        model: &Model,
        config: &Config,
        data: &Tokens,
        windows: usize,
        all: &Tensors,
        ranks: Option<&Ranks>,
    ) -> Result<Self, training::Error> {
        if let Some(ranks) = ranks.filter(|_| config.carry_state) {
            let expected = "1 where states are carried: a checkpoint has those of one rank";
            return Err(Error::bad("ranks", expected, ranks.communicator.world()).into());
        }
        let parameters = model.parameters();
        let (sizes, has_targets) = ([tokens_there(data, config), windows], data.targets.is_some());
        let begun = Instant::now();
        let Planned { plan, slots, streams, gathered_next } =
            plan(device, model, config, &parameters, sizes, has_targets, ranks)?;
        let planned = begun.elapsed();
        let begun = Instant::now();
        let shards = ranks.filter(|ranks| ranks.shard_optimizer).map(|ranks| {
            let communicator = Arc::clone(&ranks.communicator);
            (Shard::of_ranks(parameters.len(), ranks), communicator)
        });
        let tokens = match data.files {
            Some(_) => Tensor::new(&sizes[..1], &vec![0; sizes[0]]),
            None => Tensor::new(&sizes[..1], &data.ids),
        };
        let targets = data.targets.as_ref().map(|all| Tensor::new(&[all.len()], all));
        let mut masters = parameters.pack(DType::F32, all);
        let mut copy = (config.dtype != DType::F32).then(|| parameters.pack(config.dtype, all));
        if let Some((shard, _)) = &shards {
            masters = if copy.is_some() { shard.cut(masters) } else { shard.pad(masters) };
            copy = copy.map(|copy| shard.pad(copy));
        }
        let packed = begun.elapsed();
        let begun = Instant::now();
        let mut binder = plan.bind().upload(TOKENS, &tokens)?.upload(MASTERS, &masters)?;
        if let Some(targets) = &targets {
            binder = binder.upload(TARGETS, targets)?;
        }
        if let Some(copy) = &copy {
            binder = binder.upload(WEIGHTS, copy)?;
        }
        let binding = binder.finish()?;
        let gather = match &shards {
            Some((shard, communicator)) if !gathered_next.is_empty() => {
                let mut plan = Plan::new(device);
                let (name, dtype) =
                    if copy.is_some() { (WEIGHTS, config.dtype) } else { (MASTERS, DType::F32) };
                let all = plan.state(name, dtype, &[shard.padded()]);
                shard.add_gathers(&mut plan, communicator, &gathered_next, all)?;
                Some(plan.bind().share(name, &binding, name)?.finish()?)
            }
            _ => None,
        };
        let phases = vec![
            ("plan", planned),
            ("parameters in order", packed),
            ("memory of the device", begun.elapsed()),
        ];
        let fed = data.files.as_ref().map(|files| Fed {
            files: Arc::clone(files),
            order: Vec::new(),
            window: config.window,
            of_step: config.windows_of_step(),
            tokens: binding.plan().slot(TOKENS).expect("an input of the plan"),
        });
        Ok(Self { binding, parameters, slots, shards, gather, streams, fed, phases })
    }

    fn load(
        device: &Device,
        model: &Model,
        config: &Config,
        data: &Tokens,
        windows: usize,
        ranks: Option<&Ranks>,
    ) -> Result<(), training::Error> {
        // The plan loads them; it is made again when the parameters are there, in milliseconds.
        let (sizes, has_targets) = ([tokens_there(data, config), windows], data.targets.is_some());
        plan(device, model, config, &model.parameters(), sizes, has_targets, ranks)?;
        Ok(())
    }

    fn binding(&self) -> &Binding {
        &self.binding
    }

    fn binding_mut(&mut self) -> &mut Binding {
        &mut self.binding
    }

    fn complete(&mut self) -> Result<(), training::Error> {
        Ok(self.gather.as_mut().map_or(Ok(()), Binding::run)?)
    }

    fn slots(&self) -> EpochSlots {
        self.slots.of_epoch
    }

    fn parameters(&self) -> Result<Tensors, training::Error> {
        let masters = self.whole(MASTERS, self.slots.masters)?;
        Ok(self.parameters.unpack(&masters))
    }

    fn gradients(&self) -> Result<Tensors, training::Error> {
        let Slots { gradients, unsummed, sums, .. } = self.slots;
        let all = match &self.shards {
            None => self.binding.read(gradients)?,
            Some((shard, communicator)) if unsummed => {
                let own = shard.sum_of_ranks(&self.binding.read(gradients)?.values());
                let mut plan = Plan::new(self.binding.plan().device());
                let part = plan.input("part", DType::F32, &[own.len()]);
                let all = plan.state("all", DType::F32, &[shard.padded()]);
                shard.add_gather(&mut plan, communicator, |n| shard.part(n, part), all)?;
                let own = Tensor::new(&[own.len()], &own);
                let binder = plan.bind().upload("part", &own)?;
                let mut gather = binder.share("all", &self.binding, GRADIENTS)?.finish()?;
                gather.run()?;
                gather.read(all)?
            }
            // Each rank has the sums of its part, where they lie in all of them.
            Some((shard, communicator)) => {
                let mut plan = Plan::new(self.binding.plan().device());
                let all = plan.state("all", sums, &[gradients.len()]);
                shard.add_gather(&mut plan, communicator, |n| shard.own(n, all), all)?;
                let mut gather = plan.bind().share_slot(all, &self.binding, gradients)?.finish()?;
                gather.run()?;
                gather.read(all)?
            }
        };
        Ok(self.parameters.unpack(&self.arena(all)))
    }

    fn phases(&self) -> &[training::Phase] {
        &self.phases
    }

    fn moments(&self) -> Result<[Tensors; 2], training::Error> {
        let [first, second] = self.slots.moments;
        let read = |name, slot| Ok::<_, Error>(self.parameters.unpack(&self.whole(name, slot)?));
        Ok([read(MOMENTS[0], first)?, read(MOMENTS[1], second)?])
    }

    fn places(&mut self, order: &[usize]) -> Vec<i32> {
        match &mut self.fed {
            None => order.iter().map(|&start| start as i32).collect(),
            Some(fed) => {
                fed.order = order.to_vec();
                fed.places()
            }
        }
    }

    fn most_at_once(&self) -> usize {
        if self.fed.is_some() { FED_STEPS } else { usize::MAX }
    }

    fn feed(&mut self, steps: Range<usize>) -> Result<(), training::Error> {
        let Some(fed) = &self.fed else { return Ok(()) };
        let ids = fed.read(steps)?;
        Ok(self.binding.write(fed.tokens, &Tensor::new(&[ids.len()], &ids))?)
    }

    fn states(&self) -> Result<Tensors, training::Error> {
        Ok(self.streams.read(&self.binding)?)
    }

    fn write_states(&mut self, states: &Tensors) -> Result<(), training::Error> {
        Ok(self.streams.write(&mut self.binding, states)?)
    }

    fn write_moments(&mut self, moments: [&Tensors; 2]) -> Result<(), training::Error> {
        for (slot, all) in self.slots.moments.into_iter().zip(moments) {
            let arena = self.parameters.pack(DType::F32, all);
            let own = match &self.shards {
                Some((shard, _)) => shard.cut(arena),
                None => arena,
            };
            self.binding.write(slot, &own)?;
        }
        Ok(())
    }

    fn first_bad(
        &self,
        Position { epoch, step, .. }: Position,
        _: &[usize],
    ) -> Result<training::Error, training::Error> {
        let not_finite = |tensor: String, index: usize, value: f64| training::Error::NotFinite {
            epoch,
            step,
            tensor,
            index,
            value,
        };
        // The gradients first: parts of parameters are put together in their place.
        let gradients = training::Step::gradients(self)?;
        let parameters = training::Step::parameters(self)?;
        let all = [("", parameters), ("the gradient of ", gradients)];
        for (what, tensors) in &all {
            for (name, tensor) in tensors {
                let bad = tensor.values().into_iter().enumerate().find(|(_, v)| !v.is_finite());
                if let Some((index, value)) = bad {
                    return Ok(not_finite(format!("{what}{name}"), index, value));
                }
            }
        }
        let losses = self.binding.read(self.slots.of_epoch.losses)?.values();
        Ok(not_finite("the loss".into(), 0, losses[step]))
    }
}
