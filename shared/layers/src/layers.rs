//! Embedding, norms, products, dropout.

use std::cell::RefCell;

use lab_device::DType;
use lab_harness::plan::Slot;
use lab_harness::{Error, Plan};
use matmul::linear::{Activation, Lies, Product};
use matmul::weight_gradient::WeightGradient;
use passes::{Dropout, Embedding, EmbeddingUpstream, RmsNorm, RmsNormUpstream, Squares};

use crate::{Dropouts, Tape};

/// ε of the norms of heads, and of whole rows where nothing else is said.
pub(crate) const EPS: f32 = 1e-6;

impl Tape<'_> {
    /// Rows of the embedding: tokens i32 \[rows\] → \[rows, width\]. The parameter is \[vocabulary, width\]. Where it is the head's as well, it
    /// is tied: the gradient is added to what [`Tape::linear_cross_entropy`] has left.
    ///
    /// # Errors
    /// There is no such parameter; what the operation says.
    pub fn embedding(&mut self, weight: &str, tokens: Slot, is_tied: bool) -> Result<Slot, Error> {
        let [vocabulary, width] = self.sizes_of(weight)?;
        let (dtype, rows) = (self.dtype, tokens.len());
        // Without the room that a head's rows have.
        let own = |slot: Slot| slot.part(0, vocabulary * width);
        let embedding = Embedding {
            dtype,
            rows,
            vocabulary,
            width,
            tokens,
            weight: own(self.weight(&[weight])?),
            y: None,
        };
        let y = embedding.add_forward(self.plan)?;
        let accumulates = self.accumulates || is_tied;
        // The head's gradient is in the place of a tied one before.
        let used = self.used_tokens.filter(|_| !is_tied);
        if let Some(dweight) = self.gradient(&[weight])?.map(own) {
            self.push(move |back| {
                let Some(dy) = back.take(y) else { return Ok(()) };
                let upstream = EmbeddingUpstream { dy, dweight, accumulates, used };
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
            eps: self.norm_eps,
            centered: false,
            x,
            weight: self.weight(&[weight])?,
            added: None,
            y: None,
            sum: None,
        };
        let out = norm.add_forward(self.plan)?;
        let accumulates = self.accumulates;
        if let Some(dweight) = self.gradient(&[weight])? {
            self.push(move |back| {
                let Some(dy) = back.take(out.y) else { return Ok(()) };
                // What comes down the residual stream is added in the same pass.
                let residual = back.take(x);
                let upstream = RmsNormUpstream { dy, residual, dweight, accumulates, dx: None };
                let (dx, sums) = norm.add_backward_to_sums(back.plan, &out.saved, upstream)?;
                back.add_up(sums)?;
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
        if let Some(y) = self.linear_of_few(weights, x, added)? {
            return Ok(y);
        }
        let linear = Linear {
            dtype: self.dtype,
            rows: x.len() / k,
            n: self.weight(weights)?.len() / k,
            k,
            x,
            weight: self.weight(weights)?,
        };
        let y = linear.add_forward(self.plan, added)?;
        self.push_linear(linear, weights, y, added)?;
        Ok(y)
    }

    /// Leaves the backward pass of such a product on the tape.
    pub(crate) fn push_linear(
        &mut self,
        linear: Linear,
        weights: &[&str],
        y: Slot,
        added: Option<Slot>,
    ) -> Result<(), Error> {
        let (accumulates, squares) = (self.accumulates, self.squares.clone());
        if let Some(dweight) = self.gradient(weights)? {
            self.push(move |back| {
                let Some(dy) = back.take(y) else { return Ok(()) };
                if let Some(added) = added {
                    back.put(added, dy)?;
                }
                let x = linear.x;
                let so_far = back.take(x);
                linear.add_by_weight(
                    back.plan,
                    dy,
                    [x, dweight],
                    accumulates,
                    squares.as_deref(),
                )?;
                let dx = linear.add_by_input(back.plan, dy, so_far)?;
                back.put(x, dx)
            });
        }
        Ok(())
    }

    /// Drops elements of x in training, where the tape has a [rate](Tape::with_dropout) for it; x itself elsewhere.
    ///
    /// # Errors
    /// What the operation says.
    pub fn dropout(&mut self, x: Slot) -> Result<Slot, Error> {
        let (out, drop) = self.dropped(x)?;
        if let Some(drop) = drop {
            self.push(move |back| {
                let Some(dout) = back.take(out) else { return Ok(()) };
                let dx = drop.add_backward(back.plan, dout, None)?;
                back.put(x, dx)
            });
        }
        Ok(out)
    }

    pub(crate) fn dropped(&mut self, x: Slot) -> Result<(Slot, Option<Dropout>), Error> {
        let Some(Dropouts { rate, seed, step, next }) =
            self.dropout.filter(|all| self.is_training() && all.rate > 0.0)
        else {
            return Ok((x, None));
        };
        let following = next.checked_add(1).ok_or_else(|| {
            Error::bad("dropouts of a step", format!("at most {}", u16::MAX), "more")
        })?;
        self.dropout = Some(Dropouts { rate, seed, step, next: following });
        let (dtype, elements) = (self.dtype, x.len());
        let drop = Dropout { dtype, elements, rate, seed, stream: next, step, x, out: None };
        Ok((drop.add_forward(self.plan)?, Some(drop)))
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
        let y = plan.scratch(self.dtype, self.rows * self.n);
        self.add_forward_into(plan, y, added)?;
        Ok(y)
    }

    pub(crate) fn add_forward_into(
        &self,
        plan: &mut Plan,
        y: Slot,
        added: Option<Slot>,
    ) -> Result<(), Error> {
        let Self { dtype, rows, n, k, x, weight } = *self;
        let along = [Lies::AlongK, Lies::AlongK];
        let product = self.product([1, rows, n, k], along, [x, weight, y], dtype);
        Product { added, ..product }.add(plan)
    }

    /// dx = dy W, with what another layer has made of it so far.
    pub(crate) fn add_by_input(
        &self,
        plan: &mut Plan,
        dy: Slot,
        so_far: Option<Slot>,
    ) -> Result<Slot, Error> {
        let dx = plan.scratch(self.dtype, self.rows * self.k);
        self.add_by_input_into(plan, [dy, dx], so_far)?;
        Ok(dx)
    }

    pub(crate) fn add_by_input_into(
        &self,
        plan: &mut Plan,
        [dy, dx]: [Slot; 2],
        so_far: Option<Slot>,
    ) -> Result<(), Error> {
        let Self { dtype, rows, n, k, weight, .. } = *self;
        let lies = [Lies::AlongK, Lies::AcrossK];
        let product = self.product([1, rows, k, n], lies, [dy, weight, dx], dtype);
        Product { added: so_far, ..product }.add(plan)
    }

    /// dW = dyᵀ x in f32, or dW += dyᵀ x. Sums of its squares are left where somebody has room for them.
    pub(crate) fn add_by_weight(
        &self,
        plan: &mut Plan,
        dy: Slot,
        [x, dweight]: [Slot; 2],
        accumulates: bool,
        squares: Option<&RefCell<Squares>>,
    ) -> Result<(), Error> {
        let Self { dtype, rows, n, k, .. } = *self;
        if WeightGradient::takes(plan.device(), dtype, [rows, n, k]) {
            let (sizes, dw, parts) = ([rows, n, k], dweight, None);
            let of = WeightGradient { dtype, sizes, dy, x, dw, accumulates, parts, squares: None };
            let sums = of.sums_of_squares(plan.device());
            let squares = squares.and_then(|all| all.borrow_mut().of(dw, sums));
            return WeightGradient { squares, ..of }.add(plan);
        }
        let lies = [Lies::AcrossK, Lies::AcrossK];
        let product = self.product([1, n, k, rows], lies, [dy, x, dweight], DType::F32);
        Product { accumulates, ..product }.add(plan)
    }
}
