//! The vLSTM as a layer: xLSTM's mLSTM layer, as NX-AI's `xlstm_large` has it.

use lab_harness::Error;
use lab_harness::plan::Slot;
use lab_operations::{Sizes, Vlstm, VlstmStep};
use passes::{
    GatedHeadNorm, GatedHeadNormUpstream, Gates, HeadLayout, MergeHeads, SoftCapGates,
    SoftCapGatesUpstream, SplitHeads,
};

use crate::Tape;
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
}

/// C \[B, NH, DHQK, DHHV\], n \[B, NH, DHQK\] and m \[B, NH\], of f32; zeros and m = −∞ before the first position.
#[derive(Clone, Copy, Debug)]
pub struct State {
    /// C, n, m.
    pub slots: [Slot; 3],
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
fn from_column(rows: Slot, column: usize) -> Slot {
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

        let qkvo =
            self.linear(&["q.weight", "k.weight", "v.weight", "ogate_preact.weight"], y, None)?;
        let split = |start: usize, width| SplitHeads {
            dtype,
            batch,
            positions,
            heads,
            width,
            from: from_column(qkvo, start),
            from_stride: stride,
            to: None,
        };
        let [q, k, v] = [(starts[0], keys), (starts[1], keys), (starts[2], values)];
        let [q, k, v] = [q, k, v].map(|(start, width)| split(start, width).add_forward(self.plan));
        let qkv = [q?, k?, v?];

        let pre = self.linear(&["igate_preact.weight", "fgate_preact.weight"], y, None)?;
        let biases = ["igate_preact.bias", "fgate_preact.bias"];
        let capped = SoftCapGates {
            pre_dtype: dtype,
            dtype,
            batch,
            positions,
            heads,
            cap,
            pre,
            stride: pre.len() / rows,
            bias: Some(self.weight(&biases)?),
            gates: None,
        };
        let Gates { i, f } = capped.add_forward(self.plan)?;

        let vlstm = Vlstm::new(dtype, sizes, qkv, [i, f]);
        let mut saved = None;
        let h = match memory {
            Memory::Fresh if self.is_training() => {
                let (outputs, own) = vlstm.add_forward_saving(self.plan)?;
                saved = Some(own);
                outputs.h
            }
            Memory::Fresh => vlstm.add_forward(self.plan)?.h,
            Memory::Leave(State { slots }) => {
                let outputs = Vlstm { last_state: true, ..vlstm }.add_forward(self.plan)?;
                let last = outputs.state.expect("it was asked for");
                last.into_iter().zip(slots).for_each(|(from, to)| self.plan.copy(from, to));
                outputs.h
            }
            Memory::Step(State { slots }) => {
                let (gates, eps, version) = ([i, f], vlstm.eps, None);
                VlstmStep { dtype, sizes, qkv, gates, state: slots, eps, version }.add(self.plan)?
            }
        };

        let norm = GatedHeadNorm {
            dtype,
            batch,
            heads,
            positions,
            width: values,
            eps: EPS,
            h,
            layout: HeadLayout::HeadsFirst,
            ogate: from_column(qkvo, starts[3]),
            ogate_stride: stride,
            weight: self.weight(&["multihead_norm.weight"])?,
            out: None,
        };
        let out = norm.add_forward(self.plan)?;
        let by_norm = self.gradient(&["multihead_norm.weight"])?;
        let by_bias = self.gradient(&biases)?;
        if let (Some(dweight), Some(dbias), Some(saved)) = (by_norm, by_bias, saved) {
            self.push(move |back| {
                let Some(dout) = back.take(out) else { return Ok(()) };
                let dqkvo = back.plan.scratch(dtype, rows * stride);
                let upstream = GatedHeadNormUpstream {
                    dout,
                    dogate: Some(from_column(dqkvo, starts[3])),
                    dogate_stride: stride,
                    dh: None,
                    dweight,
                    accumulates: false,
                };
                let dh = norm.add_backward(back.plan, upstream)?.dh;
                let by = vlstm.add_backward(back.plan, &saved, dh)?;
                for (from, start, width) in
                    [(by.q, starts[0], keys), (by.k, starts[1], keys), (by.v, starts[2], values)]
                {
                    let (to, to_stride) = (Some(from_column(dqkvo, start)), stride);
                    MergeHeads { dtype, batch, positions, heads, width, from, to, to_stride }
                        .add_forward(back.plan)?;
                }
                // Columns behind the gates stay zero: they are rows of no parameter.
                let dpre = back.plan.zeros(dtype, pre.len());
                let upstream = SoftCapGatesUpstream {
                    gates: Gates { i: by.i, f: by.f },
                    dpre: Some(dpre),
                    dstride: capped.stride,
                    dbias: Some(dbias),
                    accumulates: false,
                };
                capped.add_backward(back.plan, upstream)?;
                back.put(qkvo, dqkvo)?;
                back.put(pre, dpre)
            });
        }
        Ok(out)
    }
}
