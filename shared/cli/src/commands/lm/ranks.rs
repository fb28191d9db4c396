//! A training on several devices: which ranks there are, and what becomes of them.

use std::thread;

use lab_device::{Device, Group, Place, Selector};
use lab_harness::Error;

use crate::Common;
use crate::failure::Failure;

/// Which ranks of a training this process is.
#[derive(Clone, Debug)]
pub(super) enum Ranks {
    /// The only one.
    One,
    /// All of so many, a thread each.
    Threads(usize),
    /// One of those that a launcher has started.
    Process(Place),
}

impl Ranks {
    /// As many as are asked for, or those of the launcher that has started this process.
    ///
    /// # Errors
    /// Both are said; the launcher's variables make no sense.
    pub(super) fn new(gpus: Option<usize>) -> Result<Self, Failure> {
        match (gpus, Place::from_env()?) {
            (Some(gpus), Some(place)) => {
                let expected =
                    format!("none beside the {} ranks of the launcher's variables", place.world);
                Err(Error::bad("--gpus", expected, gpus).into())
            }
            (Some(gpus), None) => {
                lab_training::count("--gpus", gpus, 1 << 10)?;
                Ok(if gpus == 1 { Self::One } else { Self::Threads(gpus) })
            }
            (None, Some(place)) => Ok(Self::Process(place)),
            (None, None) => Ok(Self::One),
        }
    }

    /// How many there are in all.
    pub(super) fn world(&self) -> usize {
        match self {
            Self::One => 1,
            Self::Threads(ranks) => *ranks,
            Self::Process(place) => place.world,
        }
    }

    /// Whether the first rank is of this process: the one that writes and tells.
    pub(super) fn is_first(&self) -> bool {
        !matches!(self, Self::Process(place) if place.rank > 0)
    }

    /// Runs `train` for each rank of this process, with the rank's device and group where there are others; `prepare` makes, once,
    /// what all of them take.
    ///
    /// # Errors
    /// Of the rank that was the first to fail: all others end then, too.
    pub(super) fn run<T: Sync>(
        &self,
        common: &Common,
        prepare: impl FnOnce() -> Result<T, Failure>,
        train: impl Fn(&T, Device, Option<Group>) -> Result<(), Failure> + Sync,
    ) -> Result<(), Failure> {
        let limit = Group::default_limit();
        match self {
            Self::One => {
                // A GPU takes half a second to be there.
                let (prepared, device) = thread::scope(|scope| {
                    let device = scope.spawn(|| common.open());
                    let prepared = prepare();
                    (prepared, device.join())
                });
                let panicked = |_| Err(Failure::Refused("the device has panicked".into()));
                let (prepared, device) = (prepared?, device.unwrap_or_else(panicked)?);
                // Its context becomes that of this thread, too.
                device.synchronize().map_err(Error::from)?;
                train(&prepared, device, None)
            }
            Self::Process(place) => {
                let group = Group::connect(place, limit)?;
                let end = group.end();
                let prepared = end.tell_failure(prepare())?;
                end.tell_failure(
                    open(common, place.local)
                        .and_then(|device| train(&prepared, device, Some(group))),
                )
            }
            Self::Threads(ranks) => {
                let prepared = prepare()?;
                let groups = Group::of_threads(*ranks, limit);
                let end = groups[0].end();
                let train_one = |group: Group| {
                    let (rank, end) = (group.rank(), group.end());
                    let trained =
                        open(common, rank).and_then(|device| train(&prepared, device, Some(group)));
                    end.tell_failure(trained)
                };
                let mut outcomes: Vec<Result<(), Failure>> = thread::scope(|scope| {
                    let mut groups = groups.into_iter();
                    let first = groups.next().expect("two ranks at least");
                    let others: Vec<_> =
                        groups.map(|group| scope.spawn(|| train_one(group))).collect();
                    let first = train_one(first);
                    let panicked = |_| Err(Failure::Refused("a rank has panicked".into()));
                    let others = others.into_iter().map(|one| one.join().unwrap_or_else(panicked));
                    [first].into_iter().chain(others).collect()
                });
                match end.failure() {
                    Some(failure) if failure.rank < outcomes.len() => {
                        // Another may have found it missing: then its own outcome says nothing.
                        let own = outcomes.swap_remove(failure.rank);
                        Err(own.err().unwrap_or_else(|| lab_device::Error::from(failure).into()))
                    }
                    _ => outcomes.into_iter().collect(),
                }
            }
        }
    }
}

/// How a rank's end is told to the others.
trait Told {
    fn tell_failure<T>(&self, outcome: Result<T, Failure>) -> Result<T, Failure>;
}

impl Told for lab_device::GroupEnd {
    fn tell_failure<T>(&self, outcome: Result<T, Failure>) -> Result<T, Failure> {
        if let Err(failure) = &outcome
            && self.failure().is_none()
        {
            self.fail(failure.message());
        }
        outcome
    }
}

/// The device of a rank, by its number among those of its host.
fn open(common: &Common, local: usize) -> Result<Device, Failure> {
    let gpus = Device::cuda_count().unwrap_or(0);
    let selector = match common.selector()? {
        Selector::Emulator => Selector::Emulator,
        Selector::Auto if gpus == 0 => Selector::Emulator,
        Selector::Auto => Selector::Cuda(of_rank(0, local, gpus)),
        Selector::Cuda(first) => Selector::Cuda(of_rank(first, local, gpus)),
    };
    Ok(Device::open(selector)?)
}

/// A launcher may show each rank a GPU of its own, and no other.
fn of_rank(first: u32, local: usize, gpus: u32) -> u32 {
    let is_alone = gpus == 1 && std::env::var_os("CUDA_VISIBLE_DEVICES").is_some();
    if is_alone { 0 } else { first + local as u32 }
}
