//! Parameters on a device: in the run's type, or some matrices as int8.

use lab_device::DType;
use lab_harness::plan::Slot;
use lab_harness::{Binder, Binding, Error, Plan, Tensor, Tensors};
use lab_layers::{Int8, Parameters, Quantized};

use crate::Model;

/// The arena of what has the run's type.
pub(crate) const WEIGHTS: &str = "weights";
const MATRICES: &str = "int8";
const SCALES: &str = "scales";

/// What a model's parameters are kept as.
#[derive(Clone, Debug)]
pub(crate) enum Store {
    /// All of the run's type.
    Same(Parameters),
    /// Matrices of int8 with scales, the others of the run's type.
    Int8(Quantized),
}

impl Store {
    /// Of a model; with int8 or without.
    pub(crate) fn new(model: &Model, int8: bool) -> Self {
        if int8 { Self::Int8(model.quantized()) } else { Self::Same(model.parameters()) }
    }

    /// As these parameters are.
    ///
    /// # Errors
    /// They are not the model's.
    pub(crate) fn of(model: &Model, parameters: &Tensors) -> Result<Self, Error> {
        let own = Self::new(model, is_int8(parameters));
        match &own {
            Self::Same(all) => all.check(parameters)?,
            Self::Int8(quantized) => quantized.check(parameters)?,
        }
        Ok(own)
    }

    /// What has the run's type.
    pub(crate) fn unquantized(&self) -> &Parameters {
        match self {
            Self::Same(all) => all,
            Self::Int8(quantized) => &quantized.kept,
        }
    }

    /// Adds its arenas.
    pub(crate) fn add(&self, plan: &mut Plan, dtype: DType) -> (Slot, Option<Int8<'_>>) {
        let weights = plan.input(WEIGHTS, dtype, &[self.unquantized().len()]);
        let Self::Int8(of) = self else { return (weights, None) };
        let matrices = plan.input(MATRICES, DType::I8, &[of.matrices.len()]);
        let scales = plan.input(SCALES, DType::F32, &[of.scales.len()]);
        (weights, Some(Int8 { of, matrices, scales }))
    }

    /// The arenas, by the names of their slots, with their types.
    pub(crate) fn arenas(&self, dtype: DType) -> Vec<(&'static str, DType, &Parameters)> {
        let kept = (WEIGHTS, dtype, self.unquantized());
        match self {
            Self::Same(_) => vec![kept],
            Self::Int8(of) => {
                vec![kept, (MATRICES, DType::I8, &of.matrices), (SCALES, DType::F32, &of.scales)]
            }
        }
    }

    /// What they hold.
    pub(crate) fn pack(&self, dtype: DType, parameters: &Tensors) -> Vec<(&'static str, Tensor)> {
        let pack =
            |(name, dtype, all): (_, DType, &Parameters)| (name, all.pack(dtype, parameters));
        self.arenas(dtype).into_iter().map(pack).collect()
    }

    /// Lends the arenas of another binding to one that is made.
    pub(crate) fn share<'a>(
        &self,
        binder: Binder<'a>,
        other: &Binding,
    ) -> Result<Binder<'a>, Error> {
        let names = self.arenas(DType::F32).into_iter().map(|(name, ..)| name);
        names.into_iter().try_fold(binder, |binder, name| binder.share(name, other, name))
    }
}

/// Uploads arenas into the slots of their names.
pub(crate) fn upload<'a>(
    binder: Binder<'a>,
    arenas: &'a [(&'static str, Tensor)],
) -> Result<Binder<'a>, Error> {
    arenas.iter().try_fold(binder, |binder, (name, arena)| binder.upload(name, arena))
}

/// Whether some of these are of int8.
pub(crate) fn is_int8(parameters: &Tensors) -> bool {
    parameters.values().any(|tensor| tensor.dtype == DType::I8)
}
