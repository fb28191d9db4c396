//! The feed-forward block of a language model, with SwiGLU.

use decode::FewRows;
use lab_harness::Error;
use lab_harness::plan::Slot;
use matmul::swiglu::{LinearSwiGlu, LinearSwiGluBack};
use passes::{Dropout, SwiGlu, SwiGluUpstream};

use crate::Tape;
use crate::few::Weight;
use crate::layers::Linear;

/// Rows and columns of u of a tile forward, where SwiGLU is in the products; backward a tile has twice the columns.
const TILE: [usize; 2] = [128, 128];

impl Tape<'_> {
    /// z Wdᵀ + x with u = silu(z Wgᵀ) ⊙ (z Wuᵀ): \[rows, width\] → the same. `gate_up` are two parameters, one behind the other. Of u nothing
    /// is kept: the backward pass makes it again beside its gradient.
    ///
    /// # Errors
    /// As [`Tape::embedding`].
    pub fn feed_forward(
        &mut self,
        gate_up: [&str; 2],
        down: &str,
        z: Slot,
        x: Slot,
    ) -> Result<Slot, Error> {
        let weight = self.any_weight(&gate_up)?;
        let (rows, width) = (z.len() / weight.k, weight.n / 2);
        if let [_, true] = self.is_few(rows, &weight) {
            let both = Weight { n: width, ..weight };
            let product = self.few_rows(z, both)?;
            let u = self.add_few(FewRows { gated: true, ..product })?;
            return self.linear(&[down], u, Some(x));
        }
        let is_few = self.is_few(rows, &weight)[0];
        let in_products = !is_few && self.has_swiglu_in_products([rows, width, weight.k]);
        let (up, u) = if in_products {
            self.gate_and_up(gate_up, z)?
        } else {
            let up = self.linear(&gate_up, z, None)?;
            let dtype = self.dtype;
            (Some(up), SwiGlu { dtype, rows, width, gate_up: up, u: None }.add_forward(self.plan)?)
        };
        match up.filter(|_| self.is_training()) {
            Some(up) => self.down(down, [up, u], x, in_products),
            None => self.linear(&[down], u, Some(x)),
        }
    }

    /// Whether SwiGLU is made in the registers of the products: where an eighth of the multiprocessors have a tile forward. With fewer, narrow
    /// tiles and a pass should be quicker (not measured).
    fn has_swiglu_in_products(&self, sizes: [usize; 3]) -> bool {
        let device = self.plan.device();
        let tiles = sizes[0].div_ceil(TILE[0]) * sizes[1].div_ceil(TILE[1]);
        let fills = 8 * tiles >= device.facts().multiprocessors as usize;
        fills && LinearSwiGlu::takes(device, self.dtype, sizes)
    }

    /// Gate and up, kept for the way back where there is one, and u: in one launch.
    fn gate_and_up(&mut self, weights: [&str; 2], z: Slot) -> Result<(Option<Slot>, Slot), Error> {
        self.make_ready(z)?;
        let Weight { n, k, .. } = self.any_weight(&weights)?;
        let (dtype, rows, weight) = (self.dtype, z.len() / k, self.same_type(&weights)?);
        let gate_up = self.is_training().then(|| self.plan.scratch(dtype, rows * n));
        let u = self.plan.scratch(dtype, rows * n / 2);
        LinearSwiGlu { dtype, sizes: [rows, n / 2, k], x: z, weight, gate_up, u }.add(self.plan)?;
        if let Some(gate_up) = gate_up {
            let linear = Linear { dtype, rows, n, k, x: z, weight };
            self.push_linear(linear, &weights, gate_up, None)?;
        }
        Ok((gate_up, u))
    }

    /// u Wᵀ + added, in training.
    fn down(
        &mut self,
        weight: &str,
        [gate_up, u]: [Slot; 2],
        added: Slot,
        in_products: bool,
    ) -> Result<Slot, Error> {
        let [n, width] = self.sizes_of(weight)?;
        let (dtype, rows) = (self.dtype, gate_up.len() / (2 * width));
        let (x, drop) = self.dropped(u)?;
        let linear = Linear { dtype, rows, n, k: width, x, weight: self.weight(&[weight])? };
        let y = linear.add_forward(self.plan, Some(added))?;
        let (accumulates, squares) = (self.accumulates, self.squares.clone());
        let Some(dweight) = self.gradient(&[weight])? else { return Ok(y) };
        self.push(move |back| {
            let Some(dy) = back.take(y) else { return Ok(()) };
            back.put(added, dy)?;
            let plan = &mut *back.plan;
            let u = plan.scratch(dtype, rows * width);
            let gradient = if in_products && drop.is_none() {
                let dgate_up = plan.scratch(dtype, 2 * rows * width);
                let (sizes, weight) = ([rows, width, n], linear.weight);
                LinearSwiGluBack { dtype, sizes, dy, weight, gate_up, dgate_up, u: Some(u) }
                    .add(plan)?;
                dgate_up
            } else {
                let mut du = linear.add_by_input(plan, dy, None)?;
                if let Some(drop) = drop {
                    du = drop.add_backward(plan, du, None)?;
                }
                let swiglu = SwiGlu { dtype, rows, width, gate_up, u: None };
                let upstream = SwiGluUpstream { du, dgate_up: None, recompute_into: Some(u) };
                swiglu.add_backward(plan, upstream)?
            };
            let x = match drop {
                Some(drop) => Dropout { x: u, ..drop }.add_forward(plan)?,
                None => u,
            };
            linear.add_by_weight(plan, dy, [x, dweight], accumulates, squares.as_deref())?;
            back.put(gate_up, gradient)
        });
        Ok(y)
    }
}
