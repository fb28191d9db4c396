//! Embedding, norms, products, SwiGLU.

use lab_device::DType;
use lab_harness::plan::Slot;
use lab_harness::{Error, Plan};
use matmul::linear::{Activation, Lies, Product};
use passes::{
    Embedding, EmbeddingUpstream, RmsNorm, RmsNormUpstream, SwiGlu, SwiGluUpstream, add_column_sums,
};

use crate::Tape;

/// ε of all norms.
pub(crate) const EPS: f32 = 1e-6;

impl Tape<'_> {
    /// Rows of the embedding: tokens i32 \[rows\] → \[rows, width\]. The parameter is \[vocabulary, width\].
    ///
    /// # Errors
    /// There is no such parameter; what the operation says.
    pub fn embedding(&mut self, weight: &str, tokens: Slot) -> Result<Slot, Error> {
        let [vocabulary, width] = self.sizes_of(weight)?;
        let (dtype, rows) = (self.dtype, tokens.len());
        let embedding = Embedding {
            dtype,
            rows,
            vocabulary,
            width,
            tokens,
            weight: self.weight(&[weight])?,
            y: None,
        };
        let y = embedding.add_forward(self.plan)?;
        if let Some(dweight) = self.gradient(&[weight])? {
            self.push(move |back| {
                let Some(dy) = back.take(y) else { return Ok(()) };
                let upstream = EmbeddingUpstream { dy, dweight, accumulates: false };
                embedding.add_backward(back.plan, upstream)
            });
        }
        Ok(y)
    }

    /// RMS norm of each row: \[rows, width\] → the same. The parameter is \[width\].
    ///
    /// # Errors
    /// As [`Tape::embedding`].
    pub fn rms_norm(&mut self, weight: &str, x: Slot) -> Result<Slot, Error> {
        let width = self.weight(&[weight])?.len();
        let norm = RmsNorm {
            dtype: self.dtype,
            rows: x.len() / width,
            width,
            eps: EPS,
            centered: false,
            x,
            weight: self.weight(&[weight])?,
            added: None,
            y: None,
            sum: None,
        };
        let out = norm.add_forward(self.plan)?;
        if let Some(dweight) = self.gradient(&[weight])? {
            self.push(move |back| {
                let Some(dy) = back.take(out.y) else { return Ok(()) };
                // What comes down the residual stream is added in the same pass.
                let residual = back.take(x);
                let upstream =
                    RmsNormUpstream { dy, residual, dweight, accumulates: false, dx: None };
                let dx = norm.add_backward(back.plan, &out.saved, upstream)?;
                back.put(x, dx)
            });
        }
        Ok(out.y)
    }

    /// y = x Wᵀ (+ added): \[rows, K\] → \[rows, N\], where W are the rows of these parameters, one behind the other.
    ///
    /// # Errors
    /// As [`Tape::embedding`].
    pub fn linear(
        &mut self,
        weights: &[&str],
        x: Slot,
        added: Option<Slot>,
    ) -> Result<Slot, Error> {
        let [_, k] = self.sizes_of(weights[0])?;
        let linear = Linear {
            dtype: self.dtype,
            rows: x.len() / k,
            n: self.weight(weights)?.len() / k,
            k,
            x,
            weight: self.weight(weights)?,
        };
        let y = linear.add_forward(self.plan, added)?;
        if let Some(dweight) = self.gradient(weights)? {
            self.push(move |back| {
                let Some(dy) = back.take(y) else { return Ok(()) };
                if let Some(added) = added {
                    back.put(added, dy)?;
                }
                let so_far = back.take(x);
                let dx = linear.add_backward(back.plan, dy, so_far, dweight)?;
                back.put(x, dx)
            });
        }
        Ok(y)
    }

    /// u = silu(gate) ⊙ up, of \[rows, 2 width\] with the gates first → \[rows, width\].
    ///
    /// # Errors
    /// What the operation says.
    pub fn swiglu(&mut self, gate_up: Slot, width: usize) -> Result<Slot, Error> {
        let rows = gate_up.len() / (2 * width);
        let swiglu = SwiGlu { dtype: self.dtype, rows, width, gate_up, u: None };
        let u = swiglu.add_forward(self.plan)?;
        if self.is_training() {
            self.push(move |back| {
                let Some(du) = back.take(u) else { return Ok(()) };
                let upstream = SwiGluUpstream { du, dgate_up: None, recompute_into: None };
                let gradient = swiglu.add_backward(back.plan, upstream)?;
                back.put(gate_up, gradient)
            });
        }
        Ok(u)
    }

    /// Of a parameter that is a matrix.
    pub(crate) fn sizes_of(&self, weight: &str) -> Result<[usize; 2], Error> {
        match *self.shape(weight)? {
            [rows, columns] => Ok([rows, columns]),
            ref other => {
                Err(Error::bad(format!("parameter '{weight}'"), "a matrix", format!("{other:?}")))
            }
        }
    }
}

/// y = x Wᵀ: x \[rows, K\], W \[N, K\].
#[derive(Clone, Copy)]
pub(crate) struct Linear {
    pub(crate) dtype: DType,
    pub(crate) rows: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) x: Slot,
    pub(crate) weight: Slot,
}

impl Linear {
    fn product(
        &self,
        sizes: [usize; 4],
        lies: [Lies; 2],
        [a, b, c]: [Slot; 3],
        out: DType,
    ) -> Product {
        Product {
            dtype: self.dtype,
            out,
            sizes,
            lies,
            scale: 1.0,
            activation: Activation::Identity,
            a,
            b,
            bias: None,
            added: None,
            c,
            accumulates: false,
        }
    }

    /// y, and what is added to it.
    pub(crate) fn add_forward(&self, plan: &mut Plan, added: Option<Slot>) -> Result<Slot, Error> {
        let Self { dtype, rows, n, k, x, weight } = *self;
        let y = plan.scratch(dtype, rows * n);
        let along = [Lies::AlongK, Lies::AlongK];
        let product = self.product([1, rows, n, k], along, [x, weight, y], dtype);
        Product { added, ..product }.add(plan)?;
        Ok(y)
    }

    /// dx = dy W, with what another layer has made of it so far; and dW = dyᵀ x.
    pub(crate) fn add_backward(
        &self,
        plan: &mut Plan,
        dy: Slot,
        so_far: Option<Slot>,
        dweight: Slot,
    ) -> Result<Slot, Error> {
        self.add_by_weight(plan, dy, dweight)?;
        let Self { dtype, rows, n, k, weight, .. } = *self;
        let dx = plan.scratch(dtype, rows * k);
        let lies = [Lies::AlongK, Lies::AcrossK];
        let product = self.product([1, rows, k, n], lies, [dy, weight, dx], dtype);
        Product { added: so_far, ..product }.add(plan)?;
        Ok(dx)
    }

    /// dW = dyᵀ x in f32. Few tiles would leave multiprocessors idle for a long sum: the rows are then taken in parts, whose sums are
    /// added in their order.
    fn add_by_weight(&self, plan: &mut Plan, dy: Slot, dweight: Slot) -> Result<(), Error> {
        let Self { rows, n, k, x, .. } = *self;
        let lies = [Lies::AcrossK, Lies::AcrossK];
        let parts = self.parts_of_rows(plan.device().facts().multiprocessors as usize);
        if parts == 1 {
            return self.product([1, n, k, rows], lies, [dy, x, dweight], DType::F32).add(plan);
        }
        let partial = plan.scratch(DType::F32, parts * n * k);
        let sizes = [parts, n, k, rows / parts];
        self.product(sizes, lies, [dy, x, partial], DType::F32).add(plan)?;
        add_column_sums(plan, partial, dweight, [parts, n * k], false)
    }

    /// Into how many parts the rows of dW are cut: what takes the least time, of rounds of all multiprocessors and of the parts' way to
    /// memory and back.
    fn parts_of_rows(&self, multiprocessors: usize) -> usize {
        const SIDE: usize = 128;
        /// Cycles of a step of 64 rows of such a tile, and of its ends (`linear`, measured on an H200).
        const STEP: f64 = 680.0;
        const ENDS: f64 = 2500.0;
        /// Bytes of device memory a cycle.
        const BYTES: f64 = 2200.0;
        let tiles = self.n.div_ceil(SIDE) * self.k.div_ceil(SIDE);
        let cycles = |parts: usize| {
            let rounds = (tiles * parts).div_ceil(multiprocessors) as f64;
            let bytes = (4 * self.n * self.k * (2 * parts + 1)) as f64;
            let product = rounds * ((self.rows / parts).div_ceil(64) as f64 * STEP + ENDS);
            product + if parts == 1 { 0.0 } else { bytes / BYTES + ENDS }
        };
        let fits = |parts: &usize| self.rows.is_multiple_of(*parts);
        let all = [1, 2, 3, 4, 5, 6, 8, 12, 16].into_iter().filter(fits);
        all.min_by(|a, b| cycles(*a).total_cmp(&cycles(*b))).unwrap_or(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_cut_where_multiprocessors_would_idle() {
        let device = lab_device::Device::emulator().unwrap();
        let slot = Plan::new(&device).scratch(DType::BF16, 1);
        let parts = |n, k| {
            let linear = Linear { dtype: DType::BF16, rows: 32768, n, k, x: slot, weight: slot };
            linear.parts_of_rows(132)
        };
        // 36 tiles; 108, which nearly fill a round; 2358.
        assert_eq!([parts(768, 768), parts(2304, 768), parts(50304, 768)], [8, 1, 1]);
    }
}
