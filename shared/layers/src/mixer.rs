//! The vLSTM as a layer: xLSTM's mLSTM layer, as NX-AI's `xlstm_large` has it.

use decode::GateColumns;
use lab_device::DType;
use lab_harness::plan::Slot;
use lab_harness::{Error, Plan};
use lab_operations::{
    GateGradients, NormalizerGrad, Rows, Saved, SavedRows, Sizes, Vlstm, VlstmRows, VlstmStep,
};
use passes::{
    GatedHeadNorm, GatedHeadNormUpstream, Gates, HeadLayout, MergeHeads, Narrow, SoftCapGates,
    SoftCapGatesUpstream, SplitHeads, Widen,
};

use crate::Tape;
use crate::few::InParts;
use crate::layers::EPS;

/// What a mixer begins with, and where it leaves its state.
#[derive(Clone, Copy, Debug)]
pub enum Memory {
    /// Sequences from their first position on; their last state is not wanted.
    Fresh,
    /// The same, and their last state goes here.
    Leave(State),
    /// One position of each sequence, behind this state, which is updated.
    Step(State),
    /// Sequences that go on behind this state, which becomes their last one: windows of streams, of which each begins where the one
    /// before it has ended. No gradient goes through the state.
    Carry(State),
}

/// Of the vLSTM C \[B, NH, DHQK, DHHV\], of f32 or, in runs of bf16 that do not train, of bf16, and n \[B, NH, DHQK\] and m \[B, NH\], of f32; zeros and m = −∞ before the first position. Of attention
/// the keys and the values so far, \[B, NKV, room, D\] of the run's type, and i32 \[B\]: how many positions each sequence has, with the one
/// that a step adds. Of the LSTM h and c, of the sLSTM h, c, n and m, \[B, NH DH\] each, of f32, zeros at first.
#[derive(Clone, Copy, Debug)]
pub struct State {
    /// C, n, m; or keys, values, lengths; or h, c; or h, c, n, m. What follows these is not looked at.
    pub slots: [Slot; 4],
}

impl State {
    /// Copies of the first slots, in scratch: what the way back still reads when the state has become the last one.
    pub(crate) fn copied(
        &self,
        plan: &mut Plan,
        own: usize,
        dtype: impl Fn(usize) -> DType,
    ) -> [Slot; 4] {
        let mut slots = self.slots;
        for (n, slot) in slots.iter_mut().take(own).enumerate() {
            let first = plan.scratch(dtype(n), slot.len());
            plan.copy(*slot, first);
            *slot = first;
        }
        slots
    }

    /// Of the vLSTM, the same slots with C of f32: in scratch where it is narrower.
    fn with_wide_memory(&self, plan: &mut Plan) -> Result<[Slot; 4], Error> {
        let mut slots = self.slots;
        let (c, dtype) = (slots[0], plan.dtype_of(slots[0]).unwrap_or(DType::F32));
        if dtype != DType::F32 {
            slots[0] = plan.scratch(DType::F32, c.len());
            let sum = slots[0];
            Widen { dtype, elements: c.len(), x: c, sum, accumulates: false }.add(plan)?;
        }
        Ok(slots)
    }

    /// Of the vLSTM: the state becomes this one, of f32; a narrower C is rounded once.
    fn leave(&self, plan: &mut Plan, last: [Slot; 3]) -> Result<(), Error> {
        for (from, to) in last.into_iter().zip(self.slots) {
            match plan.dtype_of(to).unwrap_or(DType::F32) {
                DType::F32 => plan.copy(from, to),
                dtype => Narrow { dtype, elements: to.len(), x: from, y: to }.add(plan)?,
            }
        }
        Ok(())
    }
}

/// Sizes of the layer, and its memory.
#[derive(Clone, Copy, Debug)]
pub struct VlstmMixer {
    /// B, NH, S, DHQK, DHHV.
    pub sizes: Sizes,
    /// Gates are cap · tanh(x / cap).
    pub cap: f32,
    /// What it begins with.
    pub memory: Memory,
}

/// The columns of the one product that makes q, k, v and the output gate.
#[derive(Clone, Copy)]
struct Columns {
    keys: usize,
    values: usize,
}

impl Columns {
    fn all(&self) -> usize {
        2 * self.keys + 2 * self.values
    }

    /// From the first column of q, k, v or the gate on.
    fn starts(&self) -> [usize; 4] {
        let Self { keys, values } = *self;
        [0, keys, 2 * keys, 2 * keys + values]
    }
}

/// Of rows, what begins with this column.
pub(crate) fn from_column(rows: Slot, column: usize) -> Slot {
    rows.part(column, rows.len() - column)
}

impl Tape<'_> {
    /// σ(o) ⊙ head norm(vLSTM(q, k, v, cap(i), cap(f))), all six linear in y: \[B S, width\] → \[B S, NH DHHV\].
    ///
    /// Parameters, one behind the other: `q.weight`, `k.weight` \[NH DHQK, width\], `v.weight`, `ogate_preact.weight`
    /// \[NH DHHV, width\]; then `igate_preact.weight` and `fgate_preact.weight` \[NH, width\], and of both `bias` \[NH\]; and
    /// `multihead_norm.weight` \[NH DHHV\].
    ///
    /// # Errors
    /// There is no such parameter; what the operations say.
    pub fn vlstm(&mut self, y: Slot, mixer: VlstmMixer) -> Result<Slot, Error> {
        let VlstmMixer { sizes, cap, memory } = mixer;
        let Sizes { batch, heads, positions, keys, values } = sizes;
        let (dtype, rows) = (self.dtype, batch * positions);
        let columns = Columns { keys: heads * keys, values: heads * values };
        let (stride, starts) = (columns.all(), columns.starts());

        if let Memory::Step(state) = memory
            && let Some(out) = self.vlstm_step(y, &mixer, state, columns)?
        {
            return Ok(out);
        }
        let qkvo =
            self.linear(&["q.weight", "k.weight", "v.weight", "ogate_preact.weight"], y, None)?;
        let pre = self.linear(&["igate_preact.weight", "fgate_preact.weight"], y, None)?;
        let biases = ["igate_preact.bias", "fgate_preact.bias"];
        // Over rows all sequences are packed: gates are [NH, B S] then.
        let over_rows =
            matches!(memory, Memory::Fresh) && VlstmRows::takes(self.plan.device(), dtype, sizes);
        let [of_gates, each] = if over_rows { [1, rows] } else { [batch, positions] };
        let capped = SoftCapGates {
            pre_dtype: dtype,
            dtype,
            batch: of_gates,
            positions: each,
            heads,
            cap,
            pre,
            stride: pre.len() / rows,
            bias: Some(self.weight(&biases)?),
            gates: None,
        };
        let Gates { i, f } = capped.add_forward(self.plan)?;
        if let Some(documents) = self.documents {
            documents.add_shut(self.plan, f, [of_gates, heads, each])?;
        }

        let recurrence = Recurrence { dtype, sizes, qkvo, columns, i, f };
        let (h, layout, upward) = match memory {
            Memory::Fresh if over_rows => {
                recurrence.add_over_rows(self.plan, self.is_training())?
            }
            memory => recurrence.add_by_heads(self.plan, memory, self.is_training())?,
        };

        let norm = GatedHeadNorm {
            dtype,
            batch,
            heads,
            positions,
            width: values,
            eps: EPS,
            h,
            layout,
            ogate: from_column(qkvo, starts[3]),
            ogate_stride: stride,
            weight: self.weight(&["multihead_norm.weight"])?,
            out: None,
        };
        let out = norm.add_forward(self.plan)?;
        let by_norm = self.gradient(&["multihead_norm.weight"])?;
        let by_bias = self.gradient(&biases)?;
        let accumulates = self.accumulates;
        if let (Some(dweight), Some(dbias), Some(upward)) = (by_norm, by_bias, upward) {
            self.push(move |back| {
                let Some(dout) = back.take(out) else { return Ok(()) };
                let dqkvo = back.plan.scratch(dtype, rows * stride);
                let upstream = GatedHeadNormUpstream {
                    dout,
                    dogate: Some(from_column(dqkvo, starts[3])),
                    dogate_stride: stride,
                    dh: None,
                    dweight,
                    accumulates,
                };
                let (by, sums) = norm.add_backward_to_sums(back.plan, upstream)?;
                back.add_up(sums)?;
                let dh = by.dh;
                let gates = recurrence.add_backward(back.plan, &upward, dh, dqkvo)?;
                // Columns behind the gates stay zero: they are rows of no parameter.
                let dpre = back.plan.zeros(dtype, pre.len());
                let upstream = SoftCapGatesUpstream {
                    gates,
                    dpre: Some(dpre),
                    dstride: capped.stride,
                    dbias: Some(dbias),
                    accumulates,
                };
                let (_, sums) = capped.add_backward_to_sums(back.plan, upstream)?;
                if let Some(sums) = sums {
                    back.add_up(sums)?;
                }
                back.put(qkvo, dqkvo)?;
                back.put(pre, dpre)
            });
        }
        Ok(out)
    }
}

impl Tape<'_> {
    /// One position of each sequence: one product for q, k, v, the output gate and the gates, each of which has a matrix of its own, so
    /// that no heads are split. `None` where that is no product of few rows.
    fn vlstm_step(
        &mut self,
        y: Slot,
        mixer: &VlstmMixer,
        State { slots: [c, n, m, _] }: State,
        columns: Columns,
    ) -> Result<Option<Slot>, Error> {
        let VlstmMixer { sizes, cap, .. } = *mixer;
        let Sizes { batch, heads, values, .. } = sizes;
        let dtype = self.dtype;
        let [_, k, v, o] = columns.starts();
        let begins = [k, v, o, columns.all()];
        let all = [
            "q.weight",
            "k.weight",
            "v.weight",
            "ogate_preact.weight",
            "igate_preact.weight",
            "fgate_preact.weight",
        ];
        let bias = self.weight(&["igate_preact.bias", "fgate_preact.bias"])?;
        let to = self.plan.scratch(DType::F32, 2 * batch * heads);
        let gates = GateColumns { heads, cap, bias, to };
        let Some(parts) = self.linear_in_parts(&all, y, &begins, gates)? else {
            return Ok(None);
        };
        let InParts { y: parts, has_gates } = parts;
        self.bring_state(c)?;
        let of_gates = parts.len() / batch - columns.all();
        let part = |begin: usize, width: usize| parts.part(batch * begin, batch * width);
        let qkv = [part(0, columns.keys), part(k, columns.keys), part(v, columns.values)];
        let capped = SoftCapGates {
            pre_dtype: dtype,
            dtype,
            batch,
            positions: 1,
            heads,
            cap,
            pre: part(columns.all(), of_gates),
            stride: of_gates,
            bias: Some(bias),
            gates: None,
        };
        let Gates { i, f } = if has_gates {
            let of = |n| to.part(n * batch * heads, batch * heads);
            Gates { i: of(0), f: of(1) }
        } else {
            capped.add_forward(self.plan)?
        };
        let step = VlstmStep {
            dtype,
            sizes,
            qkv,
            gates: [i, f],
            state: [c, n, m],
            eps: f64::from(EPS),
            version: None,
        };
        let norm = GatedHeadNorm {
            dtype,
            batch,
            heads,
            positions: 1,
            width: values,
            eps: EPS,
            h: step.add(self.plan)?,
            layout: HeadLayout::HeadsFirst,
            ogate: part(o, columns.values),
            ogate_stride: columns.values,
            weight: self.weight(&["multihead_norm.weight"])?,
            out: None,
        };
        self.head_norm_before_products(norm).map(Some)
    }
}

/// The vLSTM between the product that makes q, k and v, and the norm of h.
#[derive(Clone, Copy)]
struct Recurrence {
    dtype: DType,
    sizes: Sizes,
    qkvo: Slot,
    columns: Columns,
    i: Slot,
    f: Slot,
}

/// What the backward pass reads.
enum Upward {
    OverRows(Box<SavedRows>),
    ByHeads(Box<(Vlstm, Saved)>),
}

/// h, how its heads lie, and what the backward pass reads, if there will be one.
type Added = (Slot, HeadLayout, Option<Upward>);

impl Recurrence {
    fn rows(&self, of: Slot) -> [Rows; 3] {
        let [q, k, v, _] = self.columns.starts();
        [q, k, v].map(|start| Rows { slot: from_column(of, start), stride: self.columns.all() })
    }

    fn over_rows(&self) -> VlstmRows {
        let Self { dtype, sizes, qkvo, i, f, .. } = *self;
        let [q, k, v] = self.rows(qkvo);
        let normalizer_grad = NormalizerGrad::Constant;
        VlstmRows { dtype, sizes, q, k, v, i, f, eps: f64::from(EPS), normalizer_grad }
    }

    fn add_over_rows(&self, plan: &mut Plan, is_training: bool) -> Result<Added, Error> {
        let (h, saved) = if is_training {
            let strides = [self.columns.all(); 3];
            let (h, saved) = self.over_rows().add_forward_saving(plan, strides)?;
            (h, Some(Upward::OverRows(Box::new(saved))))
        } else {
            (self.over_rows().add_forward(plan)?, None)
        };
        Ok((h, HeadLayout::PositionsFirst, saved))
    }

    fn add_by_heads(
        &self,
        plan: &mut Plan,
        memory: Memory,
        is_training: bool,
    ) -> Result<Added, Error> {
        let Self { dtype, sizes, i, f, .. } = *self;
        let Sizes { batch, heads, positions, keys, values } = sizes;
        let [q, k, v] = self.rows(self.qkvo);
        let mut split = |from: Rows, width| {
            let (from, from_stride) = (from.slot, from.stride);
            SplitHeads { dtype, batch, positions, heads, width, from, from_stride, to: None }
                .add_forward(plan)
        };
        let qkv = [split(q, keys)?, split(k, keys)?, split(v, values)?];
        let vlstm = Vlstm::new(dtype, sizes, qkv, [i, f]);
        let (h, saved) = match memory {
            Memory::Fresh if is_training => {
                let (outputs, saved) = vlstm.add_forward_saving(plan)?;
                (outputs.h, Some(Upward::ByHeads(Box::new((vlstm, saved)))))
            }
            Memory::Fresh => (vlstm.add_forward(plan)?.h, None),
            Memory::Carry(state) => {
                let [c, n, m, _] = if is_training {
                    state.copied(plan, 3, |_| DType::F32)
                } else {
                    state.with_wide_memory(plan)?
                };
                let vlstm = Vlstm { state: Some([c, n, m]), last_state: true, ..vlstm };
                let (outputs, saved) = if is_training {
                    let (outputs, saved) = vlstm.add_forward_saving(plan)?;
                    (outputs, Some(Upward::ByHeads(Box::new((vlstm, saved)))))
                } else {
                    (vlstm.add_forward(plan)?, None)
                };
                let last = outputs.state.expect("it was asked for");
                state.leave(plan, last)?;
                (outputs.h, saved)
            }
            Memory::Leave(state) => {
                let outputs = Vlstm { last_state: true, ..vlstm }.add_forward(plan)?;
                let last = outputs.state.expect("it was asked for");
                state.leave(plan, last)?;
                (outputs.h, None)
            }
            Memory::Step(State { slots: [c, n, m, _] }) => {
                let (gates, eps, version) = ([i, f], vlstm.eps, None);
                let step = VlstmStep { dtype, sizes, qkv, gates, state: [c, n, m], eps, version };
                (step.add(plan)?, None)
            }
        };
        Ok((h, HeadLayout::HeadsFirst, saved))
    }

    /// The gradients of q, k and v go to their columns; those of the gates come back.
    fn add_backward(
        &self,
        plan: &mut Plan,
        upward: &Upward,
        dh: Slot,
        dqkvo: Slot,
    ) -> Result<Gates, Error> {
        let into = self.rows(dqkvo);
        match upward {
            Upward::OverRows(saved) => {
                let GateGradients { i, f } =
                    self.over_rows().add_backward(plan, saved, dh, into)?;
                Ok(Gates { i, f })
            }
            Upward::ByHeads(both) => {
                let (vlstm, saved) = &**both;
                let Sizes { batch, heads, positions, keys, values } = self.sizes;
                let by = vlstm.add_backward(plan, saved, dh)?;
                for (from, width, to) in
                    [(by.q, keys, into[0]), (by.k, keys, into[1]), (by.v, values, into[2])]
                {
                    let (dtype, to_stride, to) = (self.dtype, to.stride, Some(to.slot));
                    MergeHeads { dtype, batch, positions, heads, width, from, to, to_stride }
                        .add_forward(plan)?;
                }
                Ok(Gates { i: by.i, f: by.f })
            }
        }
    }
}
