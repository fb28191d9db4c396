//! The LSTM and the sLSTM as layers.

use lab_device::DType;
use lab_harness::Error;
use lab_harness::plan::{Plan, Slot};
use lab_operations::{Recurrent, RecurrentCell, RecurrentSizes, RecurrentUpstream};
use passes::{MergeHeads, SplitHeads, Widen};

use crate::{Memory, State, Tape};

/// Sizes of the layer, and its memory.
#[derive(Clone, Copy, Debug)]
pub struct RecurrentMixer {
    /// What happens in a step.
    pub cell: RecurrentCell,
    /// B.
    pub batch: usize,
    /// S.
    pub positions: usize,
    /// NH; the LSTM's units are those of all heads together.
    pub heads: usize,
    /// DH.
    pub units: usize,
    /// What it begins with.
    pub memory: Memory,
}

/// Rows \[B, S\] and steps \[S, B\] of so many columns: each is the other with its first two axes exchanged.
#[derive(Clone, Copy)]
struct Turned {
    dtype: DType,
    batch: usize,
    positions: usize,
    columns: usize,
}

impl Turned {
    /// \[S, B, columns\] of \[B, S, columns\]. Of one sequence both are the same.
    fn to_steps(self, plan: &mut Plan, from: Slot) -> Result<Slot, Error> {
        let Self { dtype, batch, positions, columns } = self;
        if batch == 1 || positions == 1 {
            return Ok(from);
        }
        let (from_stride, to) = (positions * columns, None);
        let (heads, width) = (positions, columns);
        SplitHeads { dtype, batch: 1, positions: batch, heads, width, from, from_stride, to }
            .add_forward(plan)
    }

    /// And back.
    fn to_rows(self, plan: &mut Plan, from: Slot) -> Result<Slot, Error> {
        let Self { dtype, batch, positions, columns } = self;
        if batch == 1 || positions == 1 {
            return Ok(from);
        }
        let (to, to_stride) = (None, 0);
        let (heads, width) = (positions, columns);
        MergeHeads { dtype, batch: 1, positions: batch, heads, width, from, to, to_stride }
            .add_forward(plan)
    }
}

impl Tape<'_> {
    /// An LSTM, a GRU or an sLSTM over the positions: \[B S, width\] → \[B S, NH DH\].
    ///
    /// Parameters of the LSTM: `weight_ih` \[4 H, width\], `weight_hh` \[4 H, H\], `bias_ih`, `bias_hh` \[4 H\], as PyTorch has them; of the
    /// GRU likewise, with 3 H for 4 H. Of the sLSTM: `w` \[4 H, width\], `r` \[4, NH, DH, DH\], `b` \[4, NH, DH\].
    ///
    /// # Errors
    /// There is no such parameter; what the operations say.
    pub fn recurrent(&mut self, y: Slot, mixer: RecurrentMixer) -> Result<Slot, Error> {
        let RecurrentMixer { cell, batch, positions, heads, units, memory } = mixer;
        let dtype = self.dtype;
        self.refuse_documents(match cell {
            RecurrentCell::Lstm => "the LSTM",
            RecurrentCell::Gru => "the GRU",
            RecurrentCell::Slstm => "the sLSTM",
        })?;
        if cell != RecurrentCell::Slstm {
            self.make_ready(y)?;
        }
        let hidden = heads * units;
        let names: &'static [&'static str] = match cell {
            RecurrentCell::Lstm | RecurrentCell::Gru => {
                &["weight_ih", "weight_hh", "bias_ih", "bias_hh"]
            }
            RecurrentCell::Slstm => &["r", "b"],
        };
        let (x, columns, heads, units) = match cell {
            RecurrentCell::Lstm | RecurrentCell::Gru => {
                (y, y.len() / (batch * positions), 1, hidden)
            }
            RecurrentCell::Slstm => (self.linear(&["w"], y, None)?, 4 * hidden, heads, units),
        };
        let of_x = Turned { dtype, batch, positions, columns };
        let of_h = Turned { columns: hidden, ..of_x };
        let slot = |n: usize| self.weight(&[names[n.min(names.len() - 1)]]);
        let parameters = [slot(0)?, slot(1)?, slot(2)?, slot(3)?];
        let (state, last) =
            match memory {
                Memory::Fresh => (None, None),
                Memory::Leave(State { slots }) => (None, Some(slots)),
                Memory::Step(State { slots }) => (Some(slots), Some(slots)),
                Memory::Carry(state) => {
                    let own = cell.states().len();
                    (
                        Some(state.copied(self.plan, own, |n| {
                            cell.dtype_of_state(cell.states()[n], dtype)
                        })),
                        Some(state.slots),
                    )
                }
            };
        let recurrent = Recurrent {
            cell,
            dtype,
            sizes: RecurrentSizes { steps: positions, batch, heads, units, columns },
            x: of_x.to_steps(self.plan, x)?,
            parameters,
            state,
            versions: [None; 2],
        };
        if !self.is_training() {
            let outputs = recurrent.add_forward(self.plan)?;
            for (from, to) in outputs.state.into_iter().zip(last.into_iter().flatten()) {
                self.plan.copy(from, to);
            }
            return of_h.to_rows(self.plan, outputs.y);
        }
        let (outputs, saved) = recurrent.add_forward_saving(self.plan)?;
        for (from, to) in outputs.state.into_iter().zip(last.into_iter().flatten()) {
            self.plan.copy(from, to);
        }
        let out = of_h.to_rows(self.plan, outputs.y)?;
        let accumulates = self.accumulates;
        let mut gradients = Vec::new();
        for name in names {
            gradients.extend(self.gradient(&[name])?);
        }
        self.push(move |back| {
            let Some(dout) = back.take(out) else { return Ok(()) };
            let plan = &mut *back.plan;
            let dy = of_h.to_steps(plan, dout)?;
            // In f32 they are where they belong, unless something is there that they join.
            let is_direct = dtype == DType::F32 && !accumulates;
            let own: Vec<Slot> = if is_direct {
                gradients.clone()
            } else {
                gradients.iter().map(|g| plan.scratch(dtype, g.len())).collect()
            };
            let from = RecurrentUpstream { dy, state: None };
            let dx = recurrent.add_backward(plan, &saved, from, &own)?.x;
            let apart = own.into_iter().zip(gradients).filter(|_| !is_direct);
            for (x, sum) in apart {
                Widen { dtype, elements: x.len(), x, sum, accumulates }.add(plan)?;
            }
            let dx = of_x.to_rows(plan, dx)?;
            back.put(x, dx)
        });
        Ok(out)
    }
}
