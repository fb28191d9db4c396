//! One position of softmax attention.

use lab_device::DType;
use lab_harness::plan::Slot;
use lab_harness::{Error, Options, Plan, Request, Shape, Shapes};

use crate::choose::choose_attention_step;

/// One position of softmax attention, the last of its sequence, over the keys and values of all of them.
///
/// q \[B, NH, D\], caches \[B, NKV, room, D\] of `dtype`; NH / NKV heads of q share one of keys and values.
#[derive(Clone, Copy, Debug)]
pub struct AttentionStep {
    /// Of q, the caches and o.
    pub dtype: DType,
    /// B.
    pub batch: usize,
    /// NH, a multiple of NKV.
    pub heads: usize,
    /// NKV.
    pub shared_heads: usize,
    /// Positions that the caches have room for.
    pub room: usize,
    /// D.
    pub columns: usize,
    /// Queries.
    pub q: Slot,
    /// Keys and values.
    pub caches: [Slot; 2],
    /// i32 \[B\]: the positions of each sequence, at least one.
    pub lengths: Slot,
}

impl AttentionStep {
    /// Adds it; o \[B, NH, D\].
    ///
    /// # Errors
    /// Sizes or a type that it does not take; a slot is of another length or type.
    pub fn add(&self, plan: &mut Plan) -> Result<Slot, Error> {
        let Self { dtype, batch, heads, shared_heads, room, columns, q, caches, lengths } = *self;
        let cache = vec![batch, shared_heads, room, columns];
        let all = [
            ("q", q, dtype, vec![batch, heads, columns]),
            ("k", caches[0], dtype, cache.clone()),
            ("v", caches[1], dtype, cache),
            ("lengths", lengths, DType::I32, vec![batch]),
        ];
        let given: Vec<_> = all.iter().map(|(name, slot, ..)| (*name, *slot)).collect();
        let shape =
            |(name, _, dtype, sizes): (&str, _, _, _)| (name.to_owned(), Shape { dtype, sizes });
        let shapes: Shapes = all.into_iter().map(shape).collect();
        let version = choose_attention_step(plan.device(), &shapes, &[], None)?;
        let options = Options::default();
        let step = version.plan(plan.device(), &Request::new(version.info(), shapes, &options)?)?;
        Ok(plan.include(&step, &given)?.slot("o"))
    }
}
