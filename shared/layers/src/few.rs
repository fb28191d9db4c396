//! Products of few rows, without a backward pass: what decoding consists of.

use decode::{Before, Dequantize, FewRows, GateColumns, Heads, Norm};
use lab_harness::Error;
use lab_harness::plan::Slot;
use passes::{GatedHeadNorm, RmsNorm};

use crate::Tape;
use crate::layers::Linear;

/// Up to so many rows a product norms them itself. Each block norms all of them, and of more rows a launch for all blocks is quicker.
const NORMED: usize = 2;

/// W of a product: of the run's type, or of int8 with its scales.
#[derive(Clone, Copy)]
pub(crate) struct Weight {
    pub(crate) slot: Slot,
    pub(crate) scale: Option<Slot>,
    pub(crate) n: usize,
    pub(crate) k: usize,
}

/// A norm that is not launched yet: products of few rows do it themselves.
#[derive(Clone, Copy)]
pub(crate) enum Pending {
    Rows(RmsNorm),
    Heads(GatedHeadNorm),
}

impl Pending {
    /// The norm as a product has it, and what it is of.
    fn in_product(&self) -> (Norm, Slot) {
        match *self {
            Self::Rows(RmsNorm { weight, eps, x, .. }) => (Norm { weight, eps, heads: None }, x),
            Self::Heads(GatedHeadNorm { weight, eps, h, ogate, width, .. }) => {
                (Norm { weight, eps, heads: Some(Heads { width, ogate }) }, h)
            }
        }
    }
}

/// A product whose columns have gone to several matrices.
#[derive(Clone, Copy)]
pub(crate) struct InParts {
    pub(crate) y: Slot,
    /// Whether the gates are where they belong.
    pub(crate) has_gates: bool,
}

impl Tape<'_> {
    /// As [`Tape::rms_norm`], where only products of the tape read the result: those of few rows norm them themselves, and there is no
    /// launch for it.
    ///
    /// # Errors
    /// As [`Tape::embedding`].
    pub fn rms_norm_before_products(&mut self, weight: &str, x: Slot) -> Result<Slot, Error> {
        let slot = self.weight(&[weight])?;
        let (dtype, width) = (self.dtype, slot.len());
        let rows = x.len() / width;
        if self.is_training() || !self.norms(rows, width) {
            return self.rms_norm(weight, x);
        }
        let y = self.plan.scratch(dtype, x.len());
        let norm = RmsNorm {
            dtype,
            rows,
            width,
            eps: self.norm_eps,
            centered: false,
            x,
            weight: slot,
            added: None,
            y: Some(y),
            sum: None,
        };
        self.pending.insert(y, Pending::Rows(norm));
        Ok(y)
    }

    /// The same of the gated norm of heads.
    pub(crate) fn head_norm_before_products(&mut self, norm: GatedHeadNorm) -> Result<Slot, Error> {
        let GatedHeadNorm { h, heads, width, ogate_stride, .. } = norm;
        let columns = heads * width;
        let rows = h.len() / columns;
        let norms = self.norms(rows, columns);
        let fits = ogate_stride == columns && width <= 512 && width.is_multiple_of(16);
        if self.is_training() || !norms || !fits {
            return norm.add_forward(self.plan);
        }
        let y = self.plan.scratch(self.dtype, h.len());
        self.pending.insert(y, Pending::Heads(GatedHeadNorm { out: Some(y), ..norm }));
        Ok(y)
    }

    /// Adds the launch of a norm that something else than a product of few rows reads, or a part of whose result is read.
    ///
    /// # Errors
    /// As [`Tape::rms_norm`].
    pub fn make_ready(&mut self, x: Slot) -> Result<(), Error> {
        match self.pending.remove(&x) {
            Some(Pending::Rows(norm)) => norm.add_forward(self.plan).map(|_| ()),
            Some(Pending::Heads(norm)) => norm.add_forward(self.plan).map(|_| ()),
            None => Ok(()),
        }
    }

    pub(crate) fn any_weight(&self, names: &[&str]) -> Result<Weight, Error> {
        let [_, k] = self.sizes_of(names[0])?;
        let (slot, scale) = match self.int8_weight(names)? {
            Some([slot, scale]) => (slot, Some(scale)),
            None => (self.weight(names)?, None),
        };
        Ok(Weight { slot, scale, n: slot.len() / k, k })
    }

    fn rows_to_choose_by(&self, rows: usize) -> usize {
        self.choices.map_or(rows, |choices| choices.max(rows))
    }

    /// Whether a product norms its rows itself.
    fn norms(&self, rows: usize, columns: usize) -> bool {
        let sizes = [self.rows_to_choose_by(rows), columns];
        let device = self.plan.device();
        sizes[0] <= NORMED && FewRows::norms(device, self.dtype, sizes)
            || self.int8.is_some() && FewRows::norms_as_bytes(device, self.dtype, sizes)
    }

    /// Whether a product of so many rows is one of few: \[on any cores, on the tensor cores\].
    pub(crate) fn is_few(&self, rows: usize, weight: &Weight) -> [bool; 2] {
        let (device, rows) = (self.plan.device(), self.rows_to_choose_by(rows));
        let few = FewRows::most_rows(device, self.dtype);
        let fits = !self.is_training() && (rows <= few || weight.scale.is_some());
        let takes = FewRows::takes(device, self.dtype, [rows, weight.k]);
        takes.map(|takes| takes && fits)
    }

    /// Adds the launch; the product before it asks for its first weights.
    pub(crate) fn add_few(&mut self, product: FewRows<'_>) -> Result<Slot, Error> {
        if let Some(before) = self.before.take() {
            before.ask_for_weights(self.plan, &product)?;
        }
        let y = product.add(self.plan)?;
        self.before = Before::of_last(self.plan, &product);
        Ok(y)
    }

    /// The product before asks for the beginning of a state of f32 that the next launch reads.
    pub(crate) fn bring_state(&mut self, state: Slot) -> Result<(), Error> {
        match &mut self.before {
            Some(before) => before.ask_for_state(self.plan, state),
            None => Ok(()),
        }
    }

    /// Without any option; `y` may be said.
    ///
    /// # Errors
    /// As [`Tape::rms_norm`], where the product does not norm x itself.
    pub(crate) fn few_rows(&mut self, x: Slot, weight: Weight) -> Result<FewRows<'static>, Error> {
        let Weight { slot, scale, n, k } = weight;
        let int8 = scale.is_some();
        let sizes = [self.rows_to_choose_by(x.len() / k), k];
        let by_bytes = int8 && FewRows::norms_as_bytes(self.plan.device(), self.dtype, sizes);
        if sizes[0] > NORMED && !by_bytes {
            self.make_ready(x)?;
        }
        let of = |rows| FewRows::usual_way(self.plan.device(), self.dtype, int8, [rows, k]);
        // Of what is not normed yet, the product does it.
        let pending = self.pending.get(&x).map(Pending::in_product);
        let norm = pending.map(|(norm, _)| norm);
        Ok(FewRows {
            dtype: self.dtype,
            rows: x.len() / k,
            n,
            k,
            x: pending.map_or(x, |(_, x)| x),
            weight: slot,
            scale,
            norm,
            gates: None,
            added: None,
            gated: false,
            parts: &[],
            y: None,
            way: self.choices.map(|choices| of(choices.max(x.len() / k))),
        })
    }

    /// y = x Wᵀ (+ added), where it is a product of few rows, or where W is of int8; `None` where it is neither. Of many rows W is made
    /// one of the run's type first, in scratch.
    pub(crate) fn linear_of_few(
        &mut self,
        weights: &[&str],
        x: Slot,
        added: Option<Slot>,
    ) -> Result<Option<Slot>, Error> {
        let weight = self.any_weight(weights)?;
        let rows = x.len() / weight.k;
        if self.is_few(rows, &weight)[0] {
            let product = FewRows { added, ..self.few_rows(x, weight)? };
            return self.add_few(product).map(Some);
        }
        self.make_ready(x)?;
        let Weight { scale: Some(_), n, k, .. } = weight else { return Ok(None) };
        let (dtype, weight) = (self.dtype, self.same_type(weights)?);
        Linear { dtype, rows, n, k, x, weight }.add_forward(self.plan, added).map(Some)
    }

    /// W of a product of many rows: where it is of int8, one of the run's type in scratch.
    pub(crate) fn same_type(&mut self, names: &[&str]) -> Result<Slot, Error> {
        match self.any_weight(names)? {
            Weight { slot, scale: Some(scale), n, k } => {
                Dequantize { dtype: self.dtype, n, k, weight: slot, scale }.add(self.plan)
            }
            Weight { slot, .. } => Ok(slot),
        }
    }

    /// The same, whose columns go to several matrices: those of each parameter to its own, \[rows, N\] each. `None` where it is no
    /// product of few rows, or the parameters do not lie one behind the other.
    pub(crate) fn linear_in_parts(
        &mut self,
        weights: &[&str],
        x: Slot,
        begins: &[usize],
        gates: GateColumns,
    ) -> Result<Option<InParts>, Error> {
        let Ok(weight) = self.any_weight(weights) else { return Ok(None) };
        let rows = x.len() / weight.k;
        if !self.is_few(rows, &weight)[0] {
            return Ok(None);
        }
        let [_, by_mma] = self.is_few(rows, &weight);
        let gates = Some(gates).filter(|_| by_mma);
        let product = FewRows { parts: begins, gates, ..self.few_rows(x, weight)? };
        let y = self.add_few(product)?;
        Ok(Some(InParts { y, has_gates: by_mma }))
    }
}
