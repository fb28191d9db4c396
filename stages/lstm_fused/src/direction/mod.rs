//! The launches of one direction of a layer.

mod cells;
mod gru;
mod norm;
mod products;
mod residence;
mod sequence;
mod slstm;
mod spread;
mod tensor;
mod tensor_grid;
mod tensor_products;
mod tensor_slots;

use std::collections::BTreeMap;

use lab_device::{DType, Device, Kernel, KernelSource, LaunchPromise};
use lab_harness::plan::{Argument, Plan, Scope, Slot};
use lab_harness::{Error, arguments};
use lab_reference::lstm::Cell;
use slstm_fused::Recurrence;

use products::FEW_COLUMNS;
pub use products::HeadSums;
pub(crate) use products::add_input_gradient;
pub(crate) use residence::MOST_UNITS;
pub(crate) use spread::MOST_SPREAD_UNITS;
pub(crate) use tensor::MOST_TENSOR_UNITS;
pub use tensor::check_halves;
pub(crate) use tensor_grid::{MOST_GRID_UNITS, has_room_for_grid};
pub use tensor_products::product;
pub(crate) use tensor_products::wide_bytes;
pub(crate) use tensor_slots::TensorSlots;

use crate::Way;

/// The sizes and options of a network's run.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub(crate) dtype: DType,
    pub(crate) steps: usize,
    pub(crate) batch: usize,
    pub(crate) hidden: usize,
    pub(crate) directions: usize,
    /// Whether the gates see c.
    pub(crate) peephole: bool,
    pub(crate) way: Way,
    pub(crate) cell: Cell,
    /// ε of the norms, where there are.
    pub(crate) layer_norm: Option<f64>,
    /// Whether the way back is to come: what it needs is kept.
    pub(crate) keep: bool,
    /// Whether it computes the gates again.
    pub(crate) recompute: bool,
    /// Whether rows may have fewer steps than there are: what x holds behind them is anything.
    pub(crate) ragged: bool,
}

impl Sizes {
    /// T·B, rows of all steps.
    pub(crate) fn rows(&self) -> usize {
        self.steps * self.batch
    }

    /// G·H, rows of a matrix of weights.
    pub(crate) fn weights(&self) -> usize {
        self.cell.gates() * self.hidden
    }

    /// What kernels compute in.
    pub(crate) fn arithmetic(&self) -> DType {
        if self.dtype == DType::F64 { DType::F64 } else { DType::F32 }
    }

    /// What the gates of all steps, and da, are kept in.
    pub(crate) fn gates_type(&self) -> DType {
        if self.cell.is_slstm() { self.dtype } else { self.arithmetic() }
    }

    /// The template argument of it, of kernels that have one; none where it is the default.
    pub(crate) fn gates_argument(&self) -> &'static str {
        let gates = self.gates_type();
        if gates == self.arithmetic() { "" } else { gates.cpp() }
    }
}

/// The states that all directions of all layers read and write.
#[derive(Clone, Debug)]
pub struct States {
    /// By their names, \[L·dirs, B, H\] each.
    slots: BTreeMap<String, Slot>,
    /// Steps of each row, i32, \[B\].
    lengths: Slot,
}

impl States {
    /// Of a cell ([`Cell::states`]): `slot` gives that of each, of `h0` before the first step and `hn` behind the last and
    /// so on, in this type. Whoever calls for launches over them promises that these slots, x, y, the parameters and the slots of a [`HeadSums`] have the
    /// elements that the sizes say, and that `lengths` holds 0 to T.
    pub fn new(
        _promise: LaunchPromise,
        cell: Cell,
        dtype: DType,
        lengths: Slot,
        slot: impl FnMut(&str, DType) -> Slot,
    ) -> Self {
        let ends = |of: &&'static str| [(*of, format!("{of}0")), (*of, format!("{of}n"))];
        Self { slots: slots_of(cell, dtype, cell.states().iter().flat_map(ends), slot), lengths }
    }

    /// That of `h0`, `hn` and so on.
    ///
    /// # Panics
    /// The cell has none of that name.
    pub fn slot(&self, name: &str) -> Slot {
        self.slots[name]
    }

    fn arguments(&self) -> impl Iterator<Item = (&str, Argument)> {
        let lengths = ("lengths", self.lengths.into());
        arguments_of(&self.slots).chain([lengths])
    }
}

/// What a state and the gradient by it are kept in: c, n and m of an sLSTM in f32, whatever it runs in.
pub(crate) fn state_type(cell: Cell, of: &str, dtype: DType) -> DType {
    if cell.is_slstm() && of != "h" { DType::F32 } else { dtype }
}

/// The states that have a gradient: all but m, on which nothing depends.
pub(crate) fn states_with_gradient(cell: Cell) -> impl Iterator<Item = &'static str> {
    cell.states().iter().copied().filter(|of| *of != "m")
}

/// What `slot` gives for each of these states, or the gradient by it, under its name.
fn slots_of(
    cell: Cell,
    dtype: DType,
    names: impl Iterator<Item = (&'static str, String)>,
    mut slot: impl FnMut(&str, DType) -> Slot,
) -> BTreeMap<String, Slot> {
    let named = |(of, name): (&str, String)| {
        let slot = slot(&name, state_type(cell, of, dtype));
        (name, slot)
    };
    names.map(named).collect()
}

/// Slots under the names of the kernels' parameters.
fn arguments_of(slots: &BTreeMap<String, Slot>) -> impl Iterator<Item = (&str, Argument)> {
    slots.iter().map(|(name, slot)| (name.as_str(), (*slot).into()))
}

/// The gradients that come back to a layer and to the states behind the last step, and the places of those
/// by the states before the first.
#[derive(Clone, Debug)]
pub struct Upstream {
    /// By the layer's y, \[T, B, H·dirs\]: read.
    pub(crate) dy: Slot,
    /// By the states, by their names.
    states: BTreeMap<String, Slot>,
}

impl Upstream {
    /// `slot` gives that of each gradient: `dhn`, which is read, `dh0`, which is written, and so on, in this type. By m of an
    /// sLSTM there is none. The promise is as that of [`States::new`], of the gradients.
    pub fn new(
        _promise: LaunchPromise,
        cell: Cell,
        dtype: DType,
        dy: Slot,
        slot: impl FnMut(&str, DType) -> Slot,
    ) -> Self {
        let ends = |of: &'static str| [(of, format!("d{of}n")), (of, format!("d{of}0"))];
        Self { dy, states: slots_of(cell, dtype, states_with_gradient(cell).flat_map(ends), slot) }
    }

    fn arguments(&self) -> impl Iterator<Item = (&str, Argument)> {
        arguments_of(&self.states).chain([("dy", self.dy.into())])
    }
}

/// The parameters of a direction, or the gradients by them, under the parameters' names without layer and
/// direction: those of the kernels.
pub(crate) type Weights = BTreeMap<String, Slot>;

/// What a layer reads and writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayerSlots {
    /// T x B x `columns`.
    pub(crate) x: Slot,
    pub(crate) columns: usize,
    /// T x B x H·dirs.
    pub(crate) y: Slot,
}

/// One direction of a layer.
#[derive(Debug)]
pub struct Direction {
    pub(crate) sizes: Sizes,
    /// Of x.
    pub(crate) columns: usize,
    reverse: bool,
    /// Which of all states are its own.
    state: usize,
    /// What kernels of the forward pass take, by the names of their parameters.
    scope: Scope,
    x: Slot,
    weight_ih: Slot,
    /// The gates of all steps, until da takes their place; before them, in a sequence, what x adds to
    /// them. One number where nobody needs them. Of an sLSTM what x adds, in the type itself, and then da.
    gates: Slot,
    /// c of all steps, or of the last two: of an LSTM; another slot, which nobody reads, of other cells.
    c: Slot,
    /// Of an LSTM on tensor cores.
    tensor: Option<TensorSlots>,
    /// Of an sLSTM.
    recurrence: Option<Recurrence>,
}

/// Parameters that a network may not have. Kernels get `weight_ih` in their place and do not read it.
const OPTIONAL: [&str; 5] = ["bias_ih", "bias_hh", "peephole_i", "peephole_f", "peephole_o"];

impl Direction {
    /// With room for what the forward pass leaves to the other, if that is to come; for its gates in a
    /// place that several layers share, where there is one. `state` is which of the h0 it starts from.
    pub(crate) fn new(
        plan: &mut Plan,
        sizes: Sizes,
        states: &States,
        weights: &Weights,
        LayerSlots { x, columns, y }: LayerSlots,
        state: usize,
        shared_gates: Option<Slot>,
    ) -> Self {
        let Sizes { steps, batch, hidden, directions, keep, .. } = sizes;
        let arithmetic = sizes.arithmetic();
        let weight_ih = weights["weight_ih"];
        let is_slstm = sizes.cell.is_slstm();
        let gates_len = match (sizes.way, keep) {
            _ if is_slstm => sizes.rows() * sizes.weights(),
            (Way::Cell, false) => 1,
            (way, false) if way.on_tensor_cores() => 4, // as many as a tensor map has at least
            (_, false) if columns <= FEW_COLUMNS => 1,
            _ => sizes.rows() * 4 * hidden,
        };
        let gates = shared_gates.unwrap_or_else(|| plan.scratch(sizes.gates_type(), gates_len));
        let reverse = state % directions == 1;
        let mut scope = Scope::new()
            .with(OPTIONAL.map(|name| (name, weight_ih.into())))
            .with(weights.iter().map(|(name, slot)| (name.as_str(), (*slot).into())))
            .with(states.arguments())
            .with(arguments![x, y, gates, ax: gates, da: gates])
            .with(arguments![count: steps, rows: sizes.rows(), B: batch, H: hidden])
            .with(arguments![G: sizes.weights(), I: columns, C: columns])
            .with(arguments![stride: hidden * directions, column: hidden * usize::from(reverse)])
            .with(arguments![state, reverse, biased: weights.contains_key("bias_ih")])
            .with(arguments![peephole: sizes.peephole, keep]);
        let mut c = gates;
        if sizes.cell == Cell::Lstm {
            // A launch a step with layer norm leaves n and c of all steps to itself.
            let kept = keep || sizes.layer_norm.is_some() && sizes.way == Way::Cell;
            let kept_steps = if kept { steps } else { steps.min(2) }; // of which a sequence needs none
            c = plan.scratch(arithmetic, kept_steps * batch * hidden);
            scope = scope.with(arguments![c]);
            if let Some(eps) = sizes.layer_norm {
                scope = scope.with(norm::scratch(plan, sizes, kept)).with(arguments![eps]);
            }
        }
        let slots = LayerSlots { x, columns, y };
        let on_tensor_cores = sizes.way.on_tensor_cores() && !is_slstm;
        let tensor = on_tensor_cores.then(|| TensorSlots::new(plan, sizes, states, slots, state));
        let recurrence = match sizes.cell {
            Cell::Slstm { heads } => {
                Some(slstm::recurrence(plan, sizes, heads, states, weights, [gates, y], state))
            }
            _ => None,
        };
        let direction = Self {
            sizes,
            columns,
            reverse,
            state,
            scope,
            x,
            weight_ih,
            gates,
            c,
            tensor,
            recurrence,
        };
        let together = direction.has_gates_together(plan);
        Self { scope: direction.scope.with(arguments![together]), ..direction }
    }

    /// The steps as this direction takes them.
    fn steps(&self) -> Vec<usize> {
        let forth = 0..self.sizes.steps;
        if self.reverse { forth.rev().collect() } else { forth.collect() }
    }

    /// `name<dtype, arguments>` of a kernel file.
    fn kernel(
        &self,
        plan: &Plan,
        source: &'static KernelSource,
        name: &str,
        arguments: &str,
    ) -> Result<Kernel, Error> {
        kernel(plan.device(), source, name, self.sizes.dtype, arguments)
    }

    /// Adds the launches of y, hn and cn; and of what is kept for the way back, if that is to come.
    pub(crate) fn add_forward(&self, plan: &mut Plan) -> Result<(), Error> {
        match (self.sizes.cell, self.sizes.way, self.sizes.layer_norm) {
            (Cell::Gru, ..) => self.add_gru_cells(plan),
            (Cell::Slstm { .. }, ..) => self.add_slstm(plan),
            (Cell::Lstm, Way::Cell, Some(_)) => self.add_norm_cells(plan),
            (Cell::Lstm, Way::Cell, None) => self.add_cells(plan),
            (Cell::Lstm, Way::Sequence, Some(_)) => self.add_norm_sequence(plan),
            (Cell::Lstm, Way::Sequence, None) => self.add_sequence(plan),
            (Cell::Lstm, Way::Cluster | Way::Grid, _) => self.add_spread(plan),
            (Cell::Lstm, way, _) => {
                debug_assert!(way.on_tensor_cores());
                self.add_tensor(plan)
            }
        }
    }

    /// Adds the launches of da in place of the gates, dh0 and dc0; then of the gradients by the parameters.
    pub(crate) fn add_backward(
        &self,
        plan: &mut Plan,
        upstream: &Upstream,
        gradients: &Weights,
        head: &HeadSums,
    ) -> Result<(), Error> {
        let scope = self.scope.clone().with(upstream.arguments());
        match (self.sizes.cell, self.sizes.way, self.sizes.layer_norm) {
            (Cell::Gru, ..) => self.add_gru_cells_back(plan, &scope)?,
            (Cell::Slstm { .. }, ..) => {
                return self.add_slstm_back(plan, upstream, gradients, head);
            }
            (Cell::Lstm, Way::Cell, Some(_)) => self.add_norm_cells_back(plan, &scope)?,
            (Cell::Lstm, Way::Cell, None) => self.add_cells_back(plan, &scope)?,
            (Cell::Lstm, Way::Sequence, Some(_)) => self.add_norm_sequence_back(plan, &scope)?,
            (Cell::Lstm, Way::Sequence, None) => self.add_sequence_back(plan, &scope)?,
            (Cell::Lstm, Way::Cluster | Way::Grid, _) => self.add_spread_back(plan, &scope)?,
            (Cell::Lstm, way, _) => {
                debug_assert!(way.on_tensor_cores());
                self.add_tensor_back(plan, &scope)?
            }
        }
        self.add_parameter_gradients(plan, gradients, head)
    }
}

/// Blocks of `each` for `size` elements.
///
/// # Panics
/// There are too many: such sizes have been refused.
pub fn blocks(size: usize, each: usize) -> u32 {
    u32::try_from(size.div_ceil(each)).expect("sizes that were checked")
}

/// `name<dtype, arguments>` of a kernel file.
///
/// # Errors
/// It does not compile on this device.
pub fn kernel(
    device: &Device,
    source: &'static KernelSource,
    name: &str,
    dtype: DType,
    arguments: &str,
) -> Result<Kernel, Error> {
    let comma = if arguments.is_empty() { "" } else { ", " };
    Ok(device.kernel(source, &format!("{name}<{}{comma}{arguments}>", dtype.cpp()))?)
}
