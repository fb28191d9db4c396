//! Softmax attention as a layer: rotary positions, and heads of k and v that several heads of q share, as in Llama.

use lab_harness::Error;
use lab_harness::plan::Slot;
use lab_operations::{Attention, AttentionRows, AttentionSizes, AttentionStep, Rows};
use passes::{AppendToCache, MergeHeads, Room, Rope, SplitHeads};

use crate::mixer::from_column;
use crate::{Memory, State, Tape};

/// Sizes of the layer, and its memory.
#[derive(Clone, Copy, Debug)]
pub struct AttentionMixer {
    /// B, NH, NKV, S, D.
    pub sizes: AttentionSizes,
    /// The cosines and sines of the positions' angles, f32 \[2, S, D / 2\]: [`Rope::table`], which all layers may share. For a step of all
    /// positions that there is room for.
    pub angles: Slot,
    /// What it begins with.
    pub memory: Memory,
}

/// The columns of the one product that makes q, k and v: heads beside each other.
#[derive(Clone, Copy)]
struct Columns(AttentionSizes);

impl Columns {
    /// Heads of q, k and v.
    fn heads(self) -> [usize; 3] {
        [self.0.heads, self.0.shared_heads, self.0.shared_heads]
    }

    fn all(self) -> usize {
        self.heads().iter().sum::<usize>() * self.0.columns
    }

    /// Of rows of all columns, those of q, k and v: the heads of each, and where they begin.
    fn parts(self, rows: Slot) -> [(usize, Slot); 3] {
        let AttentionSizes { heads, shared_heads, columns, .. } = self.0;
        let starts = [0, heads, heads + shared_heads];
        let slots = starts.map(|first| from_column(rows, first * columns));
        let [q, k, v] = self.heads();
        [(q, slots[0]), (k, slots[1]), (v, slots[2])]
    }
}

impl Tape<'_> {
    /// Softmax attention of q, k and v, all three linear in y, q and k turned by their positions: \[B S, width\] → \[B S, NH D\].
    ///
    /// Parameters, one behind the other: `q.weight` \[NH D, width\], `k.weight` and `v.weight` \[NKV D, width\].
    ///
    /// # Errors
    /// There is no such parameter; what the operations say.
    pub fn attention(&mut self, y: Slot, mixer: AttentionMixer) -> Result<Slot, Error> {
        let AttentionMixer { sizes, angles, memory } = mixer;
        self.refuse_documents("attention")?;
        if matches!(memory, Memory::Carry(_)) {
            let expected = "a mixer whose state has one size";
            return Err(Error::bad("mixer whose state is carried", expected, "attention"));
        }
        let AttentionSizes { batch, heads, shared_heads, positions, columns: width } = sizes;
        let (dtype, of_columns) = (self.dtype, Columns(sizes));
        let stride = of_columns.all();
        let qkv = self.linear(&["q.weight", "k.weight", "v.weight"], y, None)?;
        if let Memory::Step(state) = memory {
            return self.attention_step(of_columns, qkv, angles, state);
        }
        // In place, where the product has left them: heads of k lie behind those of q.
        let rope = Rope {
            dtype,
            batch,
            positions,
            heads: heads + shared_heads,
            width,
            stride,
            table: angles,
        };
        rope.add_forward(self.plan, qkv)?;
        let plan = &mut *self.plan;
        let [_, k, v] = of_columns.parts(qkv);
        if let Memory::Leave(State { slots: [keys, values, ..] }) = memory {
            let positions = keys.len() / (batch * shared_heads * width);
            for ((heads, from), slot) in [(k, keys), (v, values)] {
                let (from_stride, to) = (stride, None);
                SplitHeads {
                    dtype,
                    batch,
                    positions: sizes.positions,
                    heads,
                    width,
                    from,
                    from_stride,
                    to,
                }
                .add_into_room(plan, Room { slot, positions })?;
            }
        }
        if AttentionRows::takes(self.plan.device(), dtype, sizes) {
            self.attention_over_rows(of_columns, qkv, rope)
        } else {
            self.attention_by_heads(of_columns, qkv, rope)
        }
    }

    /// Of q, k and v where their product has left them.
    fn attention_over_rows(
        &mut self,
        of_columns: Columns,
        qkv: Slot,
        rope: Rope,
    ) -> Result<Slot, Error> {
        let (dtype, sizes, stride) = (self.dtype, of_columns.0, of_columns.all());
        let rows_of = move |slot| of_columns.parts(slot).map(|(_, slot)| Rows { slot, stride });
        let [q, k, v] = rows_of(qkv);
        let attention = AttentionRows { dtype, sizes, q, k, v, cu_seqlens: None, causal: true };
        if !self.is_training() {
            return attention.add_forward(self.plan);
        }
        let (out, saved) = attention.add_forward_saving(self.plan, [stride; 3])?;
        self.push(move |back| {
            let Some(dout) = back.take(out) else { return Ok(()) };
            let dqkv = back.plan.scratch(dtype, qkv.len());
            attention.add_backward(back.plan, &saved, dout, rows_of(dqkv))?;
            rope.add_backward(back.plan, dqkv)?;
            back.put(qkv, dqkv)
        });
        Ok(out)
    }

    /// Of a copy of each that has its heads one behind the other.
    fn attention_by_heads(
        &mut self,
        of_columns: Columns,
        qkv: Slot,
        rope: Rope,
    ) -> Result<Slot, Error> {
        let (dtype, sizes, stride) = (self.dtype, of_columns.0, of_columns.all());
        let AttentionSizes { batch, heads, positions, columns: width, .. } = sizes;
        let plan = &mut *self.plan;
        let [q, k, v] = of_columns.parts(qkv);
        let mut split = |(heads, from)| {
            SplitHeads {
                dtype,
                batch,
                positions,
                heads,
                width,
                from,
                from_stride: stride,
                to: None,
            }
            .add_forward(plan)
        };
        let attention = Attention::new(dtype, sizes, [split(q)?, split(k)?, split(v)?]);
        let (outputs, saved) = if self.is_training() {
            let (outputs, saved) = attention.add_forward_saving(self.plan)?;
            (outputs, Some(saved))
        } else {
            (attention.add_forward(self.plan)?, None)
        };
        let merge = MergeHeads {
            dtype,
            batch,
            positions,
            heads,
            width,
            from: outputs.o,
            to: None,
            to_stride: 0,
        };
        let out = merge.add_forward(self.plan)?;
        if let Some(saved) = saved {
            self.push(move |back| {
                let Some(dout) = back.take(out) else { return Ok(()) };
                let plan = &mut *back.plan;
                let of_o = merge.add_backward(plan, (dout, heads * width), None)?;
                let by = attention.add_backward(plan, &saved, of_o)?;
                let dqkv = plan.scratch(dtype, qkv.len());
                for (from, (heads, to)) in
                    [by.q, by.k, by.v].into_iter().zip(of_columns.parts(dqkv))
                {
                    let to = Some(to);
                    MergeHeads {
                        dtype,
                        batch,
                        positions,
                        heads,
                        width,
                        from,
                        to,
                        to_stride: stride,
                    }
                    .add_forward(plan)?;
                }
                rope.add_backward(plan, dqkv)?;
                back.put(qkv, dqkv)
            });
        }
        Ok(out)
    }

    /// The last position of each sequence, behind those of the state, which it joins.
    fn attention_step(
        &mut self,
        of_columns: Columns,
        qkv: Slot,
        angles: Slot,
        State { slots: [keys, values, lengths, _] }: State,
    ) -> Result<Slot, Error> {
        let AttentionSizes { batch, heads, shared_heads, columns, .. } = of_columns.0;
        let (dtype, stride, caches) = (self.dtype, of_columns.all(), [keys, values]);
        let room = keys.len() / (batch * shared_heads * columns);
        let [(_, q), (_, k), (_, v)] = of_columns.parts(qkv);
        let append = AppendToCache {
            dtype,
            batch,
            heads,
            shared_heads,
            width: columns,
            room,
            q,
            q_stride: stride,
            kv: [k, v],
            kv_stride: stride,
            lengths,
            table: angles,
            caches,
            q_turned: None,
        };
        let q = append.add(self.plan)?;
        AttentionStep { dtype, batch, heads, shared_heads, room, columns, q, caches, lengths }
            .add(self.plan)
    }
}
