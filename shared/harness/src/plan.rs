//! What a run consists of, before there is any memory: named slots and the launches over them.
//!
//! A plan is made from shapes, types and options alone. It knows what memory it needs, and every
//! launch has been held against its kernel. [`Plan::bind`] gives its slots memory.
//!
//! ```no_run
//! # use lab_harness::{arguments, plan::Plan, Error, Tensor};
//! # use lab_device::{DType, Device, Kernel, Launch};
//! # mod kernels {
//! #     // SAFETY: the slots have the elements that the kernel is told of.
//! #     pub(crate) const PROMISE: lab_device::LaunchPromise = unsafe { lab_device::LaunchPromise::new() };
//! # }
//! # fn main() {}
//! # fn demo(device: &Device, kernel: Kernel, tensor: &Tensor) -> Result<(), Error> {
//! let mut plan = Plan::new(device);
//! let x = plan.input("x", DType::F32, &[100]);
//! let out = plan.output("out", DType::F32, &[100]);
//! // By the names of the kernel's parameters: x, out, n.
//! plan.launch(&kernel, Launch::new(1, 128), arguments![x, out, n: 100])?;
//!
//! let mut run = plan.bind().upload("x", tensor)?.finish()?;
//! run.run()?;
//! let out = run.read(out)?;
//! # Ok(())
//! # }
//! ```

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lab_device::{
    Arg, ArgKind, Call, Collective, Communicator, DType, Device, ElementType, Kernel, Launch,
    LaunchPromise, TensorMap,
};

use crate::lifetimes::{Piece, ScratchLayout};
use crate::ranges::Ranges;
use crate::{Binder, Error, Tensor};

/// How the names of slots begin that one part of a plan leaves to the other.
const LEFT: &str = "left ";

/// What a slot is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotKind {
    /// Read and never written.
    Input,
    /// Written by each run; poisoned before the first.
    Output,
    /// Kept from run to run: read and written.
    State,
    /// Of no meaning before and after a run.
    Scratch,
}

/// What a slot holds when it is bound and nothing is uploaded. A plan sets it once, not at each run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Initial {
    /// Bytes that no kernel should read before it has written them.
    Poison,
    /// Zero in every byte.
    Zero,
    /// These bytes.
    Bytes(Arc<[u8]>),
}

/// Memory that a plan needs.
#[derive(Clone, Debug)]
pub struct SlotFacts {
    /// Its name, behind that of its layer ([`Plan::within`]) and a full stop; of scratch it may be empty.
    pub name: String,
    /// The layer that has added it: see [`Plan::within`].
    pub layer: Arc<str>,
    /// The name under which what it holds comes out behind a run: of a state that goes in under the other.
    /// See [`Plan::updated`].
    pub after: Option<String>,
    /// What it is for.
    pub kind: SlotKind,
    /// What it holds.
    pub element: ElementType,
    /// Row-major, without gaps.
    pub shape: Vec<usize>,
    /// What it holds when it is bound (not at each run: see [`Plan::zero`]).
    pub initial: Initial,
    /// Whether scratch keeps its memory to itself from run to run: see [`Plan::keep`].
    pub kept: bool,
    /// Whether what a forward pass holds in it is of no use to the backward pass: see [`Plan::mark_renewed`].
    pub renewed: bool,
}

impl SlotFacts {
    /// Whether one of its names is this one; no slot has an empty one.
    pub fn has_name(&self, name: &str) -> bool {
        !name.is_empty() && (self.name == name || self.after.as_deref() == Some(name))
    }

    /// Whether one part of a plan leaves it to the other: see [`Plan::split_before`].
    pub fn is_left(&self) -> bool {
        self.kind == SlotKind::State && self.name.starts_with(LEFT)
    }

    /// Whether a caller must bring what it holds before the first run.
    pub fn goes_in(&self) -> bool {
        self.kind == SlotKind::Input || self.after.is_some()
    }

    /// The name of the result that it holds behind a run, if it holds one.
    pub fn comes_out(&self) -> Option<&str> {
        match self.kind {
            SlotKind::Output => Some(&self.name),
            _ => self.after.as_deref(),
        }
    }

    /// Whether its memory may be another slot's before and behind the steps that use it.
    pub fn is_shared(&self) -> bool {
        self.kind == SlotKind::Scratch && self.initial == Initial::Poison && !self.kept
    }

    /// Elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Bytes.
    pub fn bytes(&self) -> usize {
        self.elements() * self.element.size()
    }
}

/// Memory of a [`Plan`], or a part of it. Another plan refuses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slot {
    /// Of its plan.
    plan: u64,
    pub(crate) index: usize,
    /// In elements.
    start: usize,
    len: usize,
}

impl Slot {
    /// `len` of its elements, from `start` on: a tensor of several that share a slot.
    ///
    /// # Panics
    /// It has fewer.
    pub fn part(self, start: usize, len: usize) -> Self {
        let fits = start.checked_add(len).is_some_and(|end| end <= self.len);
        assert!(fits, "{len} elements from {start} on, of {}", self.len);
        Self { start: self.start + start, len, ..self }
    }

    /// Elements.
    #[allow(clippy::len_without_is_empty)] // a kernel gets none that is
    pub fn len(self) -> usize {
        self.len
    }

    /// Elements of its memory before the first of these: what a kernel asks that loads several at once.
    pub fn start(self) -> usize {
        self.start
    }

    /// As an argument that is a tensor map, by which the kernel loads boxes of a tensor in it.
    pub fn loaded_by(self, map: TensorMap) -> Argument {
        Argument::Map(self, map, false)
    }

    /// As one by which the kernel stores them.
    pub fn stored_by(self, map: TensorMap) -> Argument {
        Argument::Map(self, map, true)
    }

    pub(crate) fn range(self) -> Range<usize> {
        self.start..self.start + self.len
    }
}

/// In what pieces a slot is handed on as it is written: see [`Plan::add_when_written`].
#[derive(Clone, Copy, Debug)]
pub struct Pieces {
    /// Of a piece; they lie one behind the other from the slot's begin on.
    pub elements: usize,
    /// What a GPU sends of one.
    pub bytes: usize,
}

/// An argument of a launch: a slot, or a number. Whether a kernel may write the slot, its own
/// signature says; a number becomes what the parameter is, if it fits.
#[derive(Clone, Copy, Debug)]
pub enum Argument {
    /// Memory.
    Slot(Slot),
    /// Memory by a tensor map, and whether boxes are stored by it.
    Map(Slot, TensorMap, bool),
    /// A number.
    Number(Arg<'static>),
}

impl Argument {
    /// The memory.
    pub(crate) fn slot(&self) -> Option<Slot> {
        match self {
            Self::Slot(slot) | Self::Map(slot, ..) => Some(*slot),
            Self::Number(_) => None,
        }
    }
}

impl Argument {
    /// Whether both are tensor maps, of other columns of the same rows of one slot.
    fn lies_beside(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Map(own, map, _), Self::Map(others, other, _)) => {
                let at = |slot: &Slot, map: &TensorMap| (slot.start * map.dtype.size()) as u64;
                map.lies_beside(at(own, map), other, at(others, other))
            }
            _ => false,
        }
    }
}

impl From<Slot> for Argument {
    fn from(slot: Slot) -> Self {
        Self::Slot(slot)
    }
}

macro_rules! numbers {
    ($($t:ty),*) => { $(
        impl From<$t> for Argument {
            fn from(value: $t) -> Self {
                Self::Number(value.into())
            }
        }
    )* };
}
numbers!(bool, i32, u32, i64, u64, usize, f32, f64);

/// Arguments by the names of a kernel's parameters: `named![q, k, S: length, scale: 0.5]`, where a name alone stands for the variable of
/// that name too. It is for a [`Scope`]; a launch wants [`arguments!`](crate::arguments!).
#[macro_export]
macro_rules! named {
    ($($name:ident $(: $value:expr)?),* $(,)?) => {
        [$((stringify!($name), $crate::named!(@ $name $(, $value)?))),*]
    };
    (@ $name:ident) => { $crate::plan::Argument::from($name) };
    (@ $name:ident, $value:expr) => { $crate::plan::Argument::from($value) };
}

/// The arguments of a launch, written as those of [`named!`](crate::named!), with the promise of the crate that makes it: what stands in
/// that crate as `kernels::PROMISE`, where `lab-kernel-build` has written it (see [`LaunchPromise`]).
#[macro_export]
#[allow(clippy::crate_in_macro_def)] // of the crate that makes the launch, not of this one
macro_rules! arguments {
    ($($argument:tt)*) => {
        $crate::plan::Arguments::new(crate::kernels::PROMISE, $crate::named![$($argument)*])
    };
}

/// The arguments of a launch, by name, and that with them its kernel stays within the memory of its slots.
#[derive(Clone, Debug)]
pub struct Arguments<'a> {
    named: Vec<(&'a str, Argument)>,
}

impl<'a> Arguments<'a> {
    /// Of launches that this promise holds for: [`arguments!`](crate::arguments!) takes that of the crate that writes it.
    pub fn new(
        _promise: LaunchPromise,
        named: impl IntoIterator<Item = (&'a str, Argument)>,
    ) -> Self {
        Self { named: named.into_iter().collect() }
    }
}

impl<'a> IntoIterator for Arguments<'a> {
    type Item = (&'a str, Argument);
    type IntoIter = std::vec::IntoIter<Self::Item>;

    fn into_iter(self) -> Self::IntoIter {
        self.named.into_iter()
    }
}

/// Arguments that several launches take from: each kernel takes those that its parameters name.
#[derive(Clone, Debug, Default)]
pub struct Scope(Vec<(String, Argument)>);

impl Scope {
    /// Without any.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds arguments; those of a name that is there already take its place.
    pub fn with<'a>(mut self, arguments: impl IntoIterator<Item = (&'a str, Argument)>) -> Self {
        for (name, argument) in arguments {
            self.0.retain(|(other, _)| other != name);
            self.0.push((name.to_owned(), argument));
        }
        self
    }

    fn find(&self, name: &str) -> Option<Argument> {
        self.0.iter().find(|(other, _)| other == name).map(|(_, argument)| *argument)
    }
}

/// One thing that a run does.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// With the arguments in the kernel's order, each slot with whether it may be written.
    Launch {
        kernel: Kernel,
        launch: Launch,
        arguments: Vec<(Argument, bool)>,
    },
    /// Of a slot's index.
    Zero(usize),
    Copy {
        from: usize,
        to: usize,
    },
    /// What all ranks do together, as one: each call with the slots that it reads and that it writes, which may be one. It runs beside
    /// the steps behind it, up to the first that uses what it uses.
    Together {
        communicator: Arc<Communicator>,
        calls: Vec<(Call, Slot, Slot)>,
    },
}

/// Elements of a slot that a step uses.
#[derive(Clone, Debug)]
pub(crate) struct Use {
    /// Of the slot.
    pub(crate) index: usize,
    /// In elements.
    pub(crate) range: Range<usize>,
    /// Whether it may write them.
    pub(crate) written: bool,
}

impl Use {
    /// Whether the order of two steps matters that use these.
    pub(crate) fn meets(&self, other: &Self) -> bool {
        (self.written || other.written)
            && self.index == other.index
            && self.range.start < other.range.end
            && other.range.start < self.range.end
    }
}

impl Step {
    /// What it uses, to the element; of a fill or a copy all of a slot.
    pub(crate) fn elements(&self) -> Vec<Use> {
        let all = |index: usize, written: bool| Use { index, range: 0..usize::MAX, written };
        let part =
            |slot: Slot, written: bool| Use { index: slot.index, range: slot.range(), written };
        match self {
            Self::Launch { arguments, .. } => {
                let slots = arguments.iter().map(|(a, written)| (a.slot(), *written));
                slots.filter_map(|(slot, written)| Some(part(slot?, written))).collect()
            }
            Self::Zero(index) => vec![all(*index, true)],
            Self::Copy { from, to } => vec![all(*from, false), all(*to, true)],
            Self::Together { calls, .. } => calls
                .iter()
                .flat_map(|(_, from, to)| [part(*from, false), part(*to, true)])
                .collect(),
        }
    }

    /// The slots that it uses, as indices, and whether it may write each.
    fn uses(&self) -> Vec<(usize, bool)> {
        match self {
            Self::Launch { arguments, .. } => {
                let slots = arguments.iter().map(|(a, written)| (a.slot(), *written));
                slots.filter_map(|(slot, written)| Some((slot?.index, written))).collect()
            }
            Self::Zero(index) => vec![(*index, true)],
            Self::Copy { from, to } => vec![(*from, false), (*to, true)],
            Self::Together { calls, .. } => calls
                .iter()
                .flat_map(|(_, from, to)| [(from.index, false), (to.index, true)])
                .collect(),
        }
    }

    /// The same over slots that have other indices.
    fn renumbered(&self, index_of: &BTreeMap<usize, usize>) -> Self {
        self.moved(|slot| Slot { index: index_of[&slot.index], ..slot })
    }

    /// The same over other slots, at least as long. Those of a fill or a copy are whole ones.
    fn moved(&self, moved: impl Fn(Slot) -> Slot) -> Self {
        let index_of = |&index: &usize| moved(Slot { plan: 0, index, start: 0, len: 0 }).index;
        match self {
            Self::Launch { kernel, launch, arguments } => {
                let arguments = arguments.iter().map(|(argument, written)| {
                    let argument = match *argument {
                        Argument::Slot(slot) => Argument::Slot(moved(slot)),
                        Argument::Map(slot, map, stores) => Argument::Map(moved(slot), map, stores),
                        number @ Argument::Number(_) => number,
                    };
                    (argument, *written)
                });
                Self::Launch {
                    kernel: kernel.clone(),
                    launch: *launch,
                    arguments: arguments.collect(),
                }
            }
            Self::Zero(index) => Self::Zero(index_of(index)),
            Self::Copy { from, to } => Self::Copy { from: index_of(from), to: index_of(to) },
            Self::Together { communicator, calls } => {
                let calls =
                    calls.iter().map(|(call, from, to)| (call.clone(), moved(*from), moved(*to)));
                Self::Together { communicator: Arc::clone(communicator), calls: calls.collect() }
            }
        }
    }
}

/// Slots and steps.
#[derive(Clone, Debug)]
pub struct Plan {
    device: Device,
    /// What its slots know it by; a copy of a plan has the same slots.
    id: u64,
    /// The layer under way.
    layer: Arc<str>,
    slots: Vec<SlotFacts>,
    steps: Vec<Step>,
    /// Of each step, the layer that has added it.
    layers: Vec<Arc<str>>,
}

fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The slots of a plan that was put into another, as the other has them: see [`Plan::include`].
#[derive(Clone, Debug)]
pub struct Included {
    slots: Vec<(String, Slot)>,
}

impl Included {
    /// The slot that the included plan has under this name.
    ///
    /// # Panics
    /// It has none.
    pub fn slot(&self, name: &str) -> Slot {
        self.find(name).unwrap_or_else(|| panic!("a slot '{name}' of the included plan"))
    }

    /// The same, if there is one.
    pub fn find(&self, name: &str) -> Option<Slot> {
        self.slots.iter().find(|(own, _)| own == name).map(|(_, slot)| *slot)
    }

    /// What the first of two parts of a plan leaves to the second, to be given to it: see [`Plan::split_before`].
    pub fn left(&self) -> Vec<(&str, Slot)> {
        let left = self.slots.iter().filter(|(name, _)| name.starts_with(LEFT));
        left.map(|(name, slot)| (name.as_str(), *slot)).collect()
    }
}

impl Plan {
    /// Without slots and steps. The device's memory is not touched: it says what kernels there are
    /// and how many blocks it can hold.
    pub fn new(device: &Device) -> Self {
        let (slots, steps, layers) = (Vec::new(), Vec::new(), Vec::new());
        Self { device: device.clone(), id: next_id(), layer: "".into(), slots, steps, layers }
    }

    /// The device that it runs on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    fn add(&mut self, name: &str, kind: SlotKind, element: ElementType, shape: &[usize]) -> Slot {
        let (shape, name, layer) = (shape.to_vec(), self.name_here(name), Arc::clone(&self.layer));
        let (after, initial, kept, renewed) = (None, Initial::Poison, false, false);
        self.push(SlotFacts { name, layer, after, kind, element, shape, initial, kept, renewed })
    }

    fn push(&mut self, facts: SlotFacts) -> Slot {
        let len = facts.elements();
        self.slots.push(facts);
        Slot { plan: self.id, index: self.slots.len() - 1, start: 0, len }
    }

    fn push_step(&mut self, step: Step) {
        self.steps.push(step);
        self.layers.push(Arc::clone(&self.layer));
    }

    /// A name of the layer under way; what has none gets none.
    fn name_here(&self, name: &str) -> String {
        match (&*self.layer, name) {
            ("", name) => name.to_owned(),
            (_, "") => String::new(),
            (layer, name) => format!("{layer}.{name}"),
        }
    }

    /// Adds a layer: what `add` adds has its name before its own. Layers within layers have both: `blocks.3` with `mlstm` in
    /// it makes `blocks.3.mlstm.q`.
    ///
    /// # Errors
    /// What `add` returns, with the name of the innermost layer before it.
    pub fn within<T>(
        &mut self,
        layer: &str,
        add: impl FnOnce(&mut Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let inner = self.name_here(layer).into();
        let outer = std::mem::replace(&mut self.layer, inner);
        let added = add(self).map_err(|error| error.of_layer(&self.layer));
        self.layer = outer;
        added
    }

    /// Puts all of another plan into this one. The slots of `given` take the place of those that it has under their names;
    /// of its other slots, outputs and states become scratch of this plan, and zeros, constants and scratch come as they are.
    /// So a version's plan, or one of its two parts ([`Plan::split_before`]), becomes an operation among others.
    ///
    /// # Errors
    /// The plans are of two devices; a name is no slot's, or a slot is of another type or length; an input is not given; the
    /// part would write an input of this plan, or one slot by two names of which it writes one.
    pub fn include(&mut self, part: &Self, given: &[(&str, Slot)]) -> Result<Included, Error> {
        if !self.device.is(&part.device) {
            return Err(Error::bad("device", self.device.name(), part.device.name()));
        }
        let writes = |index: usize| part.steps.iter().any(|s| s.uses().contains(&(index, true)));
        let mut places: Vec<Option<Slot>> = vec![None; part.slots.len()];
        for &(name, slot) in given {
            self.check_own(slot)?;
            let found = part.slots.iter().position(|facts| facts.has_name(name));
            let index = found.ok_or_else(|| {
                let known: Vec<_> = part.slots.iter().map(|s| s.name.as_str()).collect();
                let known: Vec<_> = known.into_iter().filter(|n| !n.is_empty()).collect();
                Error::bad("slot", format!("one of {}", known.join(", ")), format!("'{name}'"))
            })?;
            let (facts, own) = (&part.slots[index], &self.slots[slot.index]);
            let refuse = |expected: String, got: String| {
                Err(Error::Tensor { name: self.name_here(name), expected, got })
            };
            if (own.element, slot.len) != (facts.element, facts.elements()) {
                let got = format!("{} elements of {}", slot.len, own.element);
                return refuse(format!("{} {:?}", facts.element, facts.shape), got);
            }
            if own.kind == SlotKind::Input && writes(index) {
                return refuse("a slot to write to".into(), format!("the input '{}'", own.name));
            }
            let meets = |other: &Slot| {
                let [a, b] = [slot, *other].map(Slot::range);
                other.index == slot.index && a.start < b.end && b.start < a.end
            };
            let others = places.iter().enumerate().filter_map(|(n, place)| Some((n, (*place)?)));
            let clashes = |&(other, place): &(usize, Slot)| {
                meets(&place)
                    && (writes(index) || writes(other))
                    && !part.maps_lie_apart([(index, slot), (other, place)])
            };
            if let Some((other, _)) = others.into_iter().find(clashes) {
                let got = format!("that of '{}', one of which is written", part.slots[other].name);
                return refuse("memory that lies apart".into(), got);
            }
            places[index] = Some(slot);
        }
        let missing =
            part.slots.iter().zip(&places).find(|(s, place)| s.goes_in() && place.is_none());
        if let Some((facts, _)) = missing {
            let (name, expected) =
                (self.name_here(&facts.name), format!("{} {:?}", facts.element, facts.shape));
            return Err(Error::Tensor { name, expected, got: "none".into() });
        }
        let places: Vec<Slot> = part
            .slots
            .iter()
            .zip(places)
            .map(|(facts, place)| {
                place.unwrap_or_else(|| {
                    let (kind, after) = (SlotKind::Scratch, None);
                    let (name, layer) = (self.name_here(&facts.name), Arc::clone(&self.layer));
                    self.push(SlotFacts { name, layer, kind, after, ..facts.clone() })
                })
            })
            .collect();
        let moved = |slot: Slot| {
            let place = places[slot.index];
            Slot { start: place.start + slot.start, len: slot.len, ..place }
        };
        for step in &part.steps {
            // A fill or a copy is of whole slots.
            let whole =
                |index: usize| places[index].len == self.slots[places[index].index].elements();
            let is_whole = match *step {
                Step::Launch { .. } | Step::Together { .. } => true,
                Step::Zero(index) => whole(index),
                Step::Copy { from, to } => whole(from) && whole(to),
            };
            if !is_whole {
                return Err(Error::bad(
                    "slot",
                    "a whole one, for it is filled or copied",
                    "a part",
                ));
            }
            self.push_step(step.moved(moved));
        }
        let named = part.slots.iter().zip(&places);
        let slots = named.flat_map(|(facts, &slot)| {
            let names = [Some(facts.name.clone()), facts.after.clone()];
            names.into_iter().flatten().filter(|n| !n.is_empty()).map(move |name| (name, slot))
        });
        Ok(Included { slots: slots.collect() })
    }

    /// Whether all that its steps have of two slots, whose places in another plan these are, are tensor maps of other columns of
    /// the same rows.
    fn maps_lie_apart(&self, [one, other]: [(usize, Slot); 2]) -> bool {
        let arguments = || {
            self.steps.iter().flat_map(|step| match step {
                Step::Launch { arguments, .. } => arguments.as_slice(),
                Step::Zero(_) | Step::Copy { .. } | Step::Together { .. } => &[],
            })
        };
        let is_copied = |index: usize| {
            let mut steps = self.steps.iter();
            steps
                .any(|s| !matches!(s, Step::Launch { .. }) && s.uses().iter().any(|u| u.0 == index))
        };
        let maps = |(index, place): (usize, Slot)| -> Option<Vec<Argument>> {
            let own = arguments().filter(|(a, _)| a.slot().is_some_and(|s| s.index == index));
            let moved = |(argument, _): &(Argument, bool)| match *argument {
                Argument::Map(slot, map, stores) => {
                    let slot = Slot { start: place.start + slot.start, ..slot };
                    Some(Argument::Map(slot, map, stores))
                }
                Argument::Slot(_) | Argument::Number(_) => None,
            };
            own.map(moved).collect::<Option<_>>().filter(|_| !is_copied(index))
        };
        match (maps(one), maps(other)) {
            (Some(one), Some(other)) => one.iter().all(|a| other.iter().all(|b| a.lies_beside(b))),
            _ => false,
        }
    }

    /// Refuses a slot of another plan.
    ///
    /// # Errors
    /// It is one.
    pub fn check_own(&self, slot: Slot) -> Result<(), Error> {
        if slot.plan == self.id {
            Ok(())
        } else {
            Err(Error::bad("slot", "one of this plan", "one of another"))
        }
    }

    /// Of a slot of numbers, their type.
    pub fn dtype_of(&self, slot: Slot) -> Option<DType> {
        self.slots[slot.index].element.dtype()
    }

    /// Lets scratch keep its memory: no other slot has it before or behind the steps that use it, and the host may read it.
    pub fn keep(&mut self, slot: Slot) {
        self.slots[slot.index].kept = true;
    }

    /// A tensor that kernels read.
    pub fn input(&mut self, name: &str, dtype: DType, shape: &[usize]) -> Slot {
        self.add(name, SlotKind::Input, dtype.into(), shape)
    }

    /// The same, also of structs.
    pub fn input_of(&mut self, name: &str, element: ElementType, shape: &[usize]) -> Slot {
        self.add(name, SlotKind::Input, element, shape)
    }

    /// A tensor that kernels write.
    pub fn output(&mut self, name: &str, dtype: DType, shape: &[usize]) -> Slot {
        self.add(name, SlotKind::Output, dtype.into(), shape)
    }

    /// A tensor that is handed from run to run.
    pub fn state(&mut self, name: &str, dtype: DType, shape: &[usize]) -> Slot {
        self.add(name, SlotKind::State, dtype.into(), shape)
    }

    /// The same, zero in every byte when it is bound.
    pub fn state_of_zeros(&mut self, name: &str, dtype: DType, shape: &[usize]) -> Slot {
        let slot = self.state(name, dtype, shape);
        self.slots[slot.index].initial = Initial::Zero;
        slot
    }

    /// A tensor that a run reads and writes where it lies: `name` goes in, and `after`, in the same memory, comes
    /// out. It is as [`Plan::state`] beside that: a second run begins with what the first has left.
    pub fn updated(&mut self, name: &str, after: &str, dtype: DType, shape: &[usize]) -> Slot {
        let slot = self.state(name, dtype, shape);
        self.slots[slot.index].after = Some(after.to_owned());
        slot
    }

    /// Room for `len` elements, poisoned when it is bound.
    pub fn scratch(&mut self, dtype: DType, len: usize) -> Slot {
        self.add("", SlotKind::Scratch, dtype.into(), &[len])
    }

    /// Room for `len` structs that one kernel leaves to another.
    pub fn records(&mut self, name: &'static str, bytes: usize, len: usize) -> Slot {
        self.add("", SlotKind::Scratch, ElementType::Record { name, bytes }, &[len])
    }

    /// Room for `len` elements, zero when it is bound and never touched by the plan itself after.
    pub fn zeros(&mut self, dtype: DType, len: usize) -> Slot {
        let slot = self.scratch(dtype, len);
        self.slots[slot.index].initial = Initial::Zero;
        slot
    }

    /// Room with a copy of `tensor`, made when it is bound: what kernels read and no caller gives.
    pub fn constant(&mut self, tensor: &Tensor) -> Slot {
        let slot = self.scratch(tensor.dtype, tensor.len());
        self.slots[slot.index].initial = Initial::Bytes(tensor.bytes.as_slice().into());
        slot
    }

    /// Says of scratch that the backward pass writes it before it reads it, though both passes use it: cut in two, neither
    /// part leaves it to the other.
    pub fn mark_renewed(&mut self, slot: Slot) {
        self.slots[slot.index].renewed = true;
    }

    /// All that it needs, in the order in which it was asked for.
    pub fn slots(&self) -> &[SlotFacts] {
        &self.slots
    }

    /// The whole slot of that name, or the one that comes out under it.
    pub fn slot(&self, name: &str) -> Option<Slot> {
        let index = self.slots.iter().position(|s| s.has_name(name))?;
        Some(Slot { plan: self.id, index, start: 0, len: self.slots[index].elements() })
    }

    /// Bytes of all slots together.
    pub fn bytes(&self) -> usize {
        self.slots.iter().map(SlotFacts::bytes).sum()
    }

    /// Bytes of memory that holds all scratch, each piece at a multiple of 256: what
    /// [`Binder::scratch`] wants. Pieces that no step needs at the same time share memory.
    pub fn scratch_bytes(&self) -> usize {
        self.scratch_layout().bytes
    }

    /// Where each piece of scratch lies. What keeps its memory ([`SlotFacts::is_shared`]), and what no step uses, is needed always.
    pub(crate) fn scratch_layout(&self) -> ScratchLayout {
        let always = 0..self.len().max(1);
        let slots = self.slots.iter().zip(self.lives()).enumerate();
        let scratch = slots.filter(|(_, (facts, _))| facts.kind == SlotKind::Scratch);
        let piece = |(slot, (facts, life)): (usize, (&SlotFacts, Range<usize>))| {
            let ends = facts.is_shared() && life.end > 0;
            Piece { slot, bytes: facts.bytes(), life: if ends { life } else { always.clone() } }
        };
        ScratchLayout::of(scratch.map(piece).collect())
    }

    /// Bytes of device memory that it takes where no slot is lent: all slots, and scratch as [`Plan::scratch_bytes`] has it. On the
    /// emulator each slot has memory of its own: [`Plan::bytes`].
    pub fn peak_bytes(&self) -> usize {
        let others = self.slots.iter().filter(|s| s.kind != SlotKind::Scratch);
        others.map(SlotFacts::bytes).sum::<usize>() + self.scratch_bytes()
    }

    /// Of each slot the steps from the first that uses it to the last; of one that none uses, none. A launch that may begin before
    /// the one before it has ended still shares with that one.
    pub(crate) fn lives(&self) -> Vec<Range<usize>> {
        let mut lives = vec![0..0; self.slots.len()];
        for (at, step) in self.steps.iter().enumerate() {
            for (slot, _) in step.uses() {
                let life = &mut lives[slot];
                *life = if life.end == 0 { at..at + 1 } else { life.start..at + 1 };
            }
        }
        let overlaps =
            |step: &Step| matches!(step, Step::Launch { launch, .. } if launch.overlap_previous);
        // A collective may still run when the run's last step begins.
        let together = self.steps.iter().filter(|step| matches!(step, Step::Together { .. }));
        for (slot, _) in together.flat_map(Step::uses) {
            lives[slot].end = self.steps.len();
        }
        // From each step on, the first that waits for the one before it.
        let mut waiting: Vec<usize> = (0..=self.steps.len()).collect();
        for at in (0..self.steps.len()).rev().filter(|&at| overlaps(&self.steps[at])) {
            waiting[at] = waiting[at + 1];
        }
        for life in lives.iter_mut().filter(|life| life.end > 0) {
            life.end = waiting[life.end];
            // The first launch of the next run may begin before this run has ended.
            if life.end == self.steps.len() && self.steps.first().is_some_and(overlaps) {
                life.start = 0;
            }
        }
        lives
    }

    /// How many launches and other steps a run has.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    pub(crate) fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// The kernels that it launches, in their order.
    pub fn kernels(&self) -> Vec<Kernel> {
        self.launches().into_iter().map(|(kernel, _)| kernel).collect()
    }

    /// The layer that has added each step: see [`Plan::within`].
    pub fn layers(&self) -> &[Arc<str>] {
        &self.layers
    }

    /// The kernels, each with the size of its launch.
    pub fn launches(&self) -> Vec<(Kernel, Launch)> {
        let launched = self.steps.iter().filter_map(|step| match step {
            Step::Launch { kernel, launch, .. } => Some((kernel.clone(), *launch)),
            Step::Zero(_) | Step::Copy { .. } | Step::Together { .. } => None,
        });
        launched.collect()
    }

    /// Adds a launch with these arguments, by name: see [`arguments!`](crate::arguments!).
    ///
    /// That the kernel then stays within its slots, whoever makes the arguments has promised: without `unsafe` somewhere there are none.
    ///
    /// ```compile_fail,E0308
    /// # use lab_harness::{named, plan::Plan};
    /// # fn copy(plan: &mut Plan, copy: &lab_device::Kernel, x: lab_harness::plan::Slot, out: lab_harness::plan::Slot) {
    /// // 4096 columns of a slot of four are other people's memory.
    /// plan.launch(copy, lab_device::Launch::new(1, 256), named![x, out, columns: 4096]);
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Kernel::order`]; also an input that the kernel would write, and memory that it would
    /// write and is passed twice.
    pub fn launch(
        &mut self,
        kernel: &Kernel,
        launch: Launch,
        arguments: Arguments<'_>,
    ) -> Result<(), Error> {
        self.launch_in(&Scope::new(), kernel, launch, arguments)
    }

    /// The same, with what is not among the arguments taken from a scope.
    ///
    /// # Errors
    /// As [`Plan::launch`].
    pub fn launch_in(
        &mut self,
        scope: &Scope,
        kernel: &Kernel,
        launch: Launch,
        arguments: Arguments<'_>,
    ) -> Result<(), Error> {
        let mut named = arguments.named;
        for parameter in kernel.parameters() {
            let name = parameter.name.as_str();
            if named.iter().all(|(other, _)| *other != name)
                && let Some(argument) = scope.find(name)
            {
                named.push((name, argument));
            }
        }
        let arguments = self.arguments_in_order(kernel, &named)?;
        self.push_step(Step::Launch { kernel: kernel.clone(), launch, arguments });
        Ok(())
    }

    /// Gives other arguments to a launch that is a step of this plan: those that are named, and what they are is checked as by [`Plan::launch`].
    ///
    /// # Errors
    /// As [`Plan::launch`]; the step is no launch.
    pub fn set_arguments(&mut self, step: usize, arguments: Arguments<'_>) -> Result<(), Error> {
        let Some(Step::Launch { kernel, launch, arguments: old }) = self.steps.get(step).cloned()
        else {
            return Err(Error::bad("step", "a launch", step));
        };
        let mut named = arguments.named;
        for (parameter, (argument, _)) in kernel.parameters().iter().zip(old) {
            if named.iter().all(|(name, _)| *name != parameter.name) {
                named.push((&parameter.name, argument));
            }
        }
        let arguments = self.arguments_in_order(&kernel, &named)?;
        self.steps[step] = Step::Launch { kernel: kernel.clone(), launch, arguments };
        Ok(())
    }

    /// Blocks of a launch that is a step of this plan; `None` where it is none.
    pub fn blocks_of(&self, step: usize) -> Option<usize> {
        match self.steps.get(step)? {
            Step::Launch { launch, .. } => Some(launch.grid.iter().map(|n| *n as usize).product()),
            _ => None,
        }
    }

    /// The arguments of a launch as its kernel has them, each with whether it is written.
    fn arguments_in_order(
        &self,
        kernel: &Kernel,
        named: &[(&str, Argument)],
    ) -> Result<Vec<(Argument, bool)>, Error> {
        // Read-only is what an input is, and what the parameter says.
        let written = |name: &str| {
            let parameter = kernel.parameters().iter().find(|p| p.name == name);
            parameter.is_some_and(|p| !p.type_name.starts_with("const "))
        };
        let own = named.iter().filter_map(|(_, argument)| argument.slot());
        own.into_iter().try_for_each(|slot| self.check_own(slot))?;
        let kind = |argument: Argument| match argument {
            Argument::Number(number) => number.kind(),
            Argument::Slot(slot) => {
                let SlotFacts { kind, element, .. } = self.slots[slot.index];
                ArgKind::Buffer { element, writable: kind != SlotKind::Input }
            }
            Argument::Map(_, _, stores) => ArgKind::TensorMap { writable: stores },
        };
        for (name, argument) in named {
            self.check_map(kernel, name, argument)?;
        }
        let kinds: Vec<_> = named.iter().map(|(name, a)| (*name, kind(*a))).collect();
        let order = kernel.order(&kinds)?;
        let arguments = order.into_iter().map(|at| match named[at] {
            (_, argument @ Argument::Map(_, _, stores)) => (argument, stores),
            (name, argument) => (argument, written(name)),
        });
        let arguments: Vec<(Argument, bool)> = arguments.collect();
        check_overlap(kernel, &arguments)?;
        Ok(arguments)
    }

    /// Whether there is such a tensor map of that slot.
    fn check_map(&self, kernel: &Kernel, name: &str, argument: &Argument) -> Result<(), Error> {
        let Argument::Map(slot, map, stores) = argument else { return Ok(()) };
        let SlotFacts { kind, element, .. } = self.slots[slot.index];
        let wrong = |expected: String, got: String| {
            let (kernel, name) = (kernel.name().to_owned(), name.to_owned());
            Err(lab_device::Error::Argument { kernel, name, expected, got }.into())
        };
        if element != map.dtype.into() {
            return wrong(format!("a tensor map of {element}"), format!("one of {}", map.dtype));
        }
        if *stores && kind == SlotKind::Input {
            return wrong("a slot to store to".into(), "an input".into());
        }
        map.check()?;
        let (reach, bytes) = (map.reach(*stores), (slot.len * element.size()) as u64);
        if reach > bytes {
            return wrong(format!("a tensor of at most {bytes} bytes"), format!("one of {reach}"));
        }
        Ok(())
    }

    /// Adds a step that sets a slot to zero, all of it.
    pub fn zero(&mut self, slot: Slot) {
        self.push_step(Step::Zero(slot.index));
    }

    /// Adds what stands from step `first` on so many times more.
    pub fn repeat(&mut self, first: usize, times: usize) {
        let (again, layers) = (self.steps[first..].to_vec(), self.layers[first..].to_vec());
        for _ in 0..times {
            self.steps.extend(again.iter().cloned());
            self.layers.extend(layers.iter().cloned());
        }
    }

    /// Adds a step that copies a slot into another.
    ///
    /// # Panics
    /// They are one, or of different types or lengths, or one is a part of a slot.
    pub fn copy(&mut self, from: Slot, to: Slot) {
        let whole = |slot: Slot| {
            let facts = &self.slots[slot.index];
            assert_eq!(slot.range(), 0..facts.elements(), "a whole slot");
            (facts.element, facts.elements())
        };
        assert!(from.index != to.index && whole(from) == whole(to), "another slot, like it");
        self.push_step(Step::Copy { from: from.index, to: to.index });
    }

    /// Adds a collective over a slot or a part of one, where it lies.
    ///
    /// # Errors
    /// As [`Plan::together`].
    pub fn all_reduce(
        &mut self,
        communicator: &Arc<Communicator>,
        slot: Slot,
    ) -> Result<(), Error> {
        self.together(communicator, Collective::AllReduce, &[(slot, slot)])
    }

    /// Adds a step of all ranks: the same collective for each of these pairs of slots, of which it reads the first and writes the
    /// second. They are one, or lie apart, or the shorter one is this rank's part of the other; how many elements each has, [`Collective`]
    /// says. The step runs on a stream of its own beside
    /// those behind it, and the first that uses what it uses waits for it, as the end of a run does.
    ///
    /// # Errors
    /// The communicator is another device's; a slot holds structs, is an input that would be written, is of another type or length than
    /// the other of its pair; two overlap, of which one is written.
    pub fn together(
        &mut self,
        communicator: &Arc<Communicator>,
        collective: Collective,
        pairs: &[(Slot, Slot)],
    ) -> Result<(), Error> {
        let step = self.together_step(communicator, collective, pairs)?;
        self.push_step(step);
        Ok(())
    }

    fn together_step(
        &mut self,
        communicator: &Arc<Communicator>,
        collective: Collective,
        pairs: &[(Slot, Slot)],
    ) -> Result<Step, Error> {
        if !self.device.is(communicator.device()) {
            return Err(Error::bad(
                "communicator",
                self.device.name(),
                communicator.device().name(),
            ));
        }
        let (rank, world) = (communicator.rank(), communicator.world());
        let name_of = |facts: &SlotFacts| match (facts.name.as_str(), &*self.layer) {
            ("", "") => "scratch".to_owned(),
            ("", layer) => format!("scratch of {layer}"),
            (name, _) => name.to_owned(),
        };
        let mut calls: Vec<(Call, Slot, Slot)> = Vec::new();
        for &(from, to) in pairs {
            self.check_own(from)?;
            self.check_own(to)?;
            let [read, written] = [from, to].map(|slot| &self.slots[slot.index]);
            let name = name_of(written);
            let refuse = |expected: String, got: String| {
                Err(Error::Tensor { name: name.clone(), expected, got })
            };
            let Some(dtype) = read.element.dtype() else {
                return refuse("numbers".into(), read.element.to_string());
            };
            if written.element != read.element {
                return refuse(read.element.to_string(), written.element.to_string());
            }
            if written.kind == SlotKind::Input {
                return refuse(
                    "a slot to write to".into(),
                    format!("the input '{}'", written.name),
                );
            }
            let count = match collective {
                Collective::ReduceScatter => to.len,
                Collective::AllToAll => from.len / world,
                _ => from.len,
            };
            let [reads, writes] = collective.elements(count, world);
            if [from.len, to.len] != [reads, writes] {
                let what = format!("{reads} elements into {writes}");
                return refuse(what, format!("{} into {}", from.len, to.len));
            }
            // What all ranks have alike: a rank's own part of it lies elsewhere than those of others.
            let (whole, facts) = match collective {
                Collective::ReduceScatter => (from, read),
                _ => (to, written),
            };
            let of = match (name_of(facts), whole.range()) {
                (name, range) if range == (0..facts.elements()) => name,
                (name, range) => format!("{name}[{}..{}]", range.start, range.end),
            };
            calls.push((Call { collective, dtype, count, of }, from, to));
        }
        let uses: Vec<[Use; 2]> = calls
            .iter()
            .map(|(_, from, to)| {
                [(from, false), (to, true)].map(|(slot, written)| Use {
                    index: slot.index,
                    range: slot.range(),
                    written,
                })
            })
            .collect();
        for (n, (call, from, to)) in calls.iter().enumerate() {
            // A rank's own part of what all have may lie where it will.
            let own =
                |all: &Slot| Slot { start: all.start + call.count * rank, len: call.count, ..*all };
            let in_place = match collective {
                Collective::AllGather => *from == own(to),
                Collective::ReduceScatter => *to == own(from),
                Collective::AllToAll => false,
                _ => from == to,
            };
            let in_itself = !in_place && uses[n][0].meets(&uses[n][1]);
            let others = uses[..n].iter().flatten();
            let meets_other =
                others.into_iter().any(|other| uses[n].iter().any(|own| own.meets(other)));
            if in_itself || meets_other {
                return Err(Error::Tensor {
                    name: call.of.clone(),
                    expected: "memory that lies apart".into(),
                    got: "memory of another part of the collective".into(),
                });
            }
        }
        Ok(Step::Together { communicator: Arc::clone(communicator), calls })
    }

    /// Adds what `add` adds before all steps that are there.
    ///
    /// # Errors
    /// Those of `add`.
    pub fn add_first(
        &mut self,
        add: impl FnOnce(&mut Self) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let others = (std::mem::take(&mut self.steps), std::mem::take(&mut self.layers));
        let added = add(self);
        self.steps.extend(others.0);
        self.layers.extend(others.1);
        added
    }

    /// The first step that uses an element of a slot, if one does.
    pub fn first_use(&self, slot: Slot) -> Option<usize> {
        let own = Use { index: slot.index, range: slot.range(), written: true };
        self.steps.iter().position(|step| step.elements().iter().any(|other| own.meets(other)))
    }

    /// Sums a slot over all ranks, in pieces, when the steps from `first` on have written them for the last time.
    ///
    /// # Errors
    /// As [`Plan::together`] and [`Plan::add_when_written`].
    pub fn all_reduce_when_written(
        &mut self,
        communicator: &Arc<Communicator>,
        slot: Slot,
        first: usize,
        pieces: Pieces,
    ) -> Result<(), Error> {
        self.add_when_written(slot, first, pieces, |plan, parts| {
            let pairs: Vec<_> = parts.iter().map(|&part| (part, part)).collect();
            plan.together(communicator, Collective::AllReduce, &pairs)
        })
    }

    /// Adds what `add` makes of parts of a slot, such as their sums, each where the steps from `first` on have written it for the last
    /// time: the rest of them runs beside that. A piece begins with the next launch that shares the device well, which is one of more
    /// blocks than there are multiprocessors, or at once where no such launch will have room for it. What is left, and what no step has
    /// written, comes at the end. Neighbours that begin together are one part.
    ///
    /// # Errors
    /// Pieces of no elements; those of `add`.
    pub fn add_when_written(
        &mut self,
        slot: Slot,
        first: usize,
        pieces: Pieces,
        mut add: impl FnMut(&mut Self, &[Slot]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if pieces.elements == 0 {
            return Err(Error::bad("elements of a piece", "at least 1", 0));
        }
        // The last first, so that places before stay what they are.
        for (at, ranges) in self.pieces_when_written(slot, first, pieces).into_iter().rev() {
            let end = self.steps.len();
            let part = |range: &Range<usize>| Slot { start: range.start, len: range.len(), ..slot };
            let parts: Vec<Slot> = ranges.iter().map(part).collect();
            add(self, &parts)?;
            let (steps, layers) = (self.steps.split_off(end), self.layers.split_off(end));
            self.steps.splice(at..at, steps);
            self.layers.splice(at..at, layers);
        }
        Ok(())
    }

    /// Before which step which parts of a slot are final, in the order of the steps.
    fn pieces_when_written(
        &self,
        slot: Slot,
        first: usize,
        Pieces { elements: piece, bytes }: Pieces,
    ) -> Vec<(usize, Vec<Range<usize>>)> {
        // From the last step to the first: the elements that it is the last to use.
        let mut seen = Ranges::default();
        let mut ready: BTreeMap<usize, Vec<Range<usize>>> = BTreeMap::new();
        for at in (first..self.steps.len()).rev() {
            for Use { index, range, .. } in self.steps[at].elements() {
                let range = range.start.max(slot.start)..range.end.min(slot.start + slot.len);
                if index == slot.index && range.start < range.end {
                    ready.entry(at + 1).or_default().extend(seen.add(range));
                }
            }
        }
        let mut room: usize = (first..self.steps.len()).map(|at| self.room_beside(at, bytes)).sum();
        // In the order of the steps again; what is a whole piece goes, the rest when all is there.
        let (mut waiting, mut sent) = (Ranges::default(), Ranges::default());
        let mut queue: VecDeque<Range<usize>> = VecDeque::new();
        let mut insertions: Vec<(usize, Vec<Range<usize>>)> = Vec::new();
        for at in first..self.steps.len() {
            ready.remove(&at).into_iter().flatten().for_each(|range| drop(waiting.add(range)));
            for range in waiting.take(|range| range.len() >= piece) {
                let whole =
                    (range.start - slot.start).div_ceil(piece)..(range.end - slot.start) / piece;
                let begin = |n: usize| slot.start + n * piece;
                if whole.is_empty() {
                    waiting.add(range);
                    continue;
                }
                waiting.add(range.start..begin(whole.start));
                waiting.add(begin(whole.end)..range.end);
                sent.add(begin(whole.start)..begin(whole.end));
                queue.extend(whole.map(|n| begin(n)..begin(n + 1)));
            }
            let own = self.room_beside(at, bytes);
            room -= own;
            let count = queue.len().min(own.max(queue.len().saturating_sub(room)));
            if count > 0 {
                let mut own = Ranges::default();
                queue.drain(..count).for_each(|range| drop(own.add(range)));
                insertions.push((at, own.take(|_| true)));
            }
        }
        // With what was too small, and what nobody has written.
        let mut rest = Ranges::default();
        queue.into_iter().chain(sent.add(slot.range())).for_each(|range| drop(rest.add(range)));
        let rest = rest.take(|_| true);
        if !rest.is_empty() {
            insertions.push((self.steps.len(), rest));
        }
        insertions
    }

    /// Beside how many transfers of so many bytes a launch can run: as many as may end before it does. One with at most a block for
    /// each multiprocessor has room for none, as each of its blocks does a fixed share: those that begin when the transfer or the other
    /// blocks have ended make it take up to twice its time.
    fn room_beside(&self, step: usize, bytes: usize) -> usize {
        /// Bytes that a GPU's memory moves while its links move one: of an H200 4 TB/s, and 284 GB/s in a sum.
        const MEMORY_OF_LINKS: usize = 14;
        let Step::Launch { launch, arguments, .. } = &self.steps[step] else { return 0 };
        let blocks: u64 = launch.grid.iter().map(|n| u64::from(*n)).product();
        if blocks <= u64::from(self.device.facts().multiprocessors) {
            return 0;
        }
        // What it has by several arguments, it moves once.
        let mut moved: BTreeMap<usize, Ranges> = BTreeMap::new();
        for slot in arguments.iter().filter_map(|(argument, _)| argument.slot()) {
            moved.entry(slot.index).or_default().add(slot.range());
        }
        let bytes_of =
            |(index, ranges): (&usize, &Ranges)| ranges.len() * self.slots[*index].element.size();
        moved.iter().map(bytes_of).sum::<usize>() / MEMORY_OF_LINKS / bytes.max(1)
    }

    /// The collectives of a run, in their order.
    pub fn collectives(&self) -> Vec<Call> {
        let of = |step: &Step| match step {
            Step::Together { calls, .. } => calls.iter().map(|(call, ..)| call.clone()).collect(),
            Step::Launch { .. } | Step::Zero(_) | Step::Copy { .. } => Vec::new(),
        };
        self.steps.iter().flat_map(of).collect()
    }

    /// Slots that copy engines of all ranks reach: of collectives that they make, in the order of the slots.
    pub(crate) fn shared_slots(&self) -> BTreeMap<usize, Arc<Communicator>> {
        let mut shared = BTreeMap::new();
        for step in &self.steps {
            let Step::Together { communicator, calls } = step else { continue };
            for (call, from, to) in calls.iter().filter(|_| communicator.copies().is_ok()) {
                if matches!(call.collective, Collective::AllGather | Collective::AllToAll) {
                    shared.extend([from, to].map(|slot| (slot.index, Arc::clone(communicator))));
                }
            }
        }
        shared
    }

    /// Of its collectives, if there are any.
    pub fn communicator(&self) -> Option<&Arc<Communicator>> {
        self.steps.iter().find_map(|step| match step {
            Step::Together { communicator, .. } => Some(communicator),
            Step::Launch { .. } | Step::Zero(_) | Step::Copy { .. } => None,
        })
    }

    /// Of each step, the last of the collectives under way that it must wait for, counted from 0; and, behind the last step, that for
    /// which a run must. Those before it have ended then: they follow each other on their stream.
    pub(crate) fn waits(&self) -> Vec<Option<usize>> {
        let mut under_way: Vec<(usize, Vec<Use>)> = Vec::new();
        let mut waits = Vec::with_capacity(self.steps.len() + 1);
        let mut count = 0;
        for step in &self.steps {
            let uses = step.elements();
            if matches!(step, Step::Together { .. }) {
                under_way.push((count, uses));
                count += 1;
                waits.push(None);
                continue;
            }
            let meets =
                |others: &[Use]| uses.iter().any(|own| others.iter().any(|other| own.meets(other)));
            let last = under_way.iter().rposition(|(_, others)| meets(others));
            waits.push(last.map(|last| under_way[last].0));
            if let Some(last) = last {
                under_way.drain(..=last);
            }
        }
        waits.push(under_way.last().map(|(last, _)| *last));
        waits
    }

    /// Cuts it before the first step that uses one of these slots: what can be run before they are there, such as the
    /// forward pass before the gradient of its result, and what is left. Scratch that the first part leaves to the
    /// second is in both a [`SlotKind::State`] of one name, of which [`is_left`](SlotFacts::is_left) is true; an output that the
    /// second reads is an input of it.
    ///
    /// The second part can be run any number of times after the first: what a step of it may write of what is left, as a
    /// parameter without `const` may, it copies into scratch of its own first.
    ///
    /// `None` where nothing can be run before; and where the second part would write an output or a state of the first, or find
    /// scratch that must hold something when it is bound.
    pub fn split_before(&self, names: &[&str]) -> Option<[Self; 2]> {
        let is_named = |index: usize| names.iter().any(|name| self.slots[index].has_name(name));
        let at =
            self.steps.iter().position(|s| s.uses().iter().any(|&(slot, _)| is_named(slot)))?;
        let (first, second) = self.steps.split_at(at);
        let used = |steps: &[Step]| -> BTreeMap<usize, bool> {
            let mut all = BTreeMap::new();
            for (slot, written) in steps.iter().flat_map(Step::uses) {
                *all.entry(slot).or_default() |= written;
            }
            all
        };
        let (by_first, by_second) = (used(first), used(second));
        let both: BTreeSet<usize> =
            by_first.keys().filter(|slot| by_second.contains_key(slot)).copied().collect();
        let is_kept = |&slot: &usize| {
            let SlotFacts { kind, initial, .. } = &self.slots[slot];
            match kind {
                SlotKind::Input => true,
                SlotKind::Scratch => *initial == Initial::Poison,
                SlotKind::Output | SlotKind::State => !by_second[&slot],
            }
        };
        if first.is_empty() || !both.iter().all(is_kept) {
            return None;
        }
        // What the second part begins by writing anew, all of it, it does not take from the first.
        let begins_anew = |slot: usize| {
            let first_use = second.iter().find(|s| s.uses().iter().any(|&(used, _)| used == slot));
            match first_use {
                Some(Step::Zero(_)) => true,
                Some(Step::Copy { to, .. }) => *to == slot,
                Some(Step::Launch { .. } | Step::Together { .. }) | None => false,
            }
        };
        let left: BTreeSet<usize> = both
            .iter()
            .copied()
            .filter(|&slot| self.slots[slot].kind == SlotKind::Scratch)
            .filter(|&slot| !self.slots[slot].renewed && !begins_anew(slot))
            .collect();
        let (first_layers, second_layers) = self.layers.split_at(at);
        let part =
            |steps: &[Step], layers: &[Arc<str>], own: BTreeMap<usize, bool>, is_second: bool| {
                let mut index_of: BTreeMap<usize, usize> =
                    own.keys().enumerate().map(|(new, &old)| (old, new)).collect();
                let slots = own.keys().map(|&old| {
                    let mut facts = self.slots[old].clone();
                    match facts.kind {
                        SlotKind::Scratch if left.contains(&old) => {
                            facts.kind = SlotKind::State;
                            facts.name = format!("{LEFT}{old}");
                        }
                        SlotKind::Output if is_second && both.contains(&old) => {
                            facts.kind = SlotKind::Input;
                        }
                        _ => {}
                    }
                    facts
                });
                let mut slots: Vec<SlotFacts> = slots.collect();
                let mut own_steps = Vec::new();
                for &old in left.iter().filter(|old| is_second && own[old]) {
                    let copy = slots.len();
                    slots.push(self.slots[old].clone());
                    let from = index_of.insert(old, copy).expect("a slot of this part");
                    own_steps.push(Step::Copy { from, to: copy });
                }
                own_steps.extend(steps.iter().map(|step| step.renumbered(&index_of)));
                // The copies are of the layer whose step comes first.
                let of_copies = own_steps.len() - steps.len();
                let first_layer = layers.first().unwrap_or(&self.layer);
                let layers =
                    vec![Arc::clone(first_layer); of_copies].into_iter().chain(layers.to_vec());
                let (device, layer) = (self.device.clone(), Arc::clone(&self.layer));
                let layers = layers.collect();
                Self { device, id: next_id(), layer, slots, steps: own_steps, layers }
            };
        Some([
            part(first, first_layers, by_first, false),
            part(second, second_layers, by_second, true),
        ])
    }

    /// Begins to give the slots memory.
    pub fn bind<'a>(self) -> Binder<'a> {
        Binder::new(self)
    }
}

/// What a kernel gets to write it gets once: else it would race with itself.
fn check_overlap(kernel: &Kernel, arguments: &[(Argument, bool)]) -> Result<(), Error> {
    for (n, (argument, written)) in arguments.iter().enumerate() {
        let Some(own) = argument.slot() else { continue };
        let meets = |(other, other_written): &(Argument, bool)| {
            (*written || *other_written)
                && other.slot().is_some_and(|other| {
                    other.index == own.index
                        && other.start < own.start + own.len
                        && own.start < other.start + other.len
                })
                && !argument.lies_beside(other)
        };
        if let Some(other) = arguments[..n].iter().position(meets) {
            let name = |n: usize| kernel.parameters()[n].name.clone();
            let (kernel, first, second) = (kernel.name().to_owned(), name(other), name(n));
            return Err(lab_device::Error::Overlap { kernel, first, second }.into());
        }
    }
    Ok(())
}
