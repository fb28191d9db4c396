//! What all versions of a family share: they compute the same.

use std::fmt;

use lab_device::DType;

use crate::compare::Magnitudes;
use crate::suite::VersionCheck;
use crate::{Cost, Dims, Info, Input, Options, Problem, Tensors};

/// Outputs in f64, by name.
pub type Reference = [(&'static str, Vec<f64>)];

/// A family: what goes in, what must come out, what it costs, what is timed. Its versions differ in
/// how they do it, in the sizes and types that they take, and in how exact they are.
pub trait Family: Sync {
    /// Its name, as `lab compare` takes it.
    fn name(&self) -> &'static str;

    /// Random inputs for a problem of a version, by name.
    fn draw_inputs(&self, info: &Info, problem: &Problem) -> Tensors;

    /// Inputs that not every version takes, and without which the problem is another one: a version that
    /// does not take them refuses them.
    fn given_to_some(&self) -> &'static [Input] {
        &[]
    }

    /// The outputs in f64, by name; also those that come under these options only.
    ///
    /// # Panics
    /// The inputs or options are not those of a checked problem of the version.
    fn reference(
        &self,
        info: &Info,
        inputs: &Tensors,
        options: &Options,
    ) -> Vec<(&'static str, Vec<f64>)>;

    /// What the rounding errors of each element are relative to, by output: the sum that it is of, without
    /// its cancellation. `reference` is what [`Family::reference`] gave for the same inputs. An output that
    /// is not named is held relative to the largest of its row.
    ///
    /// # Panics
    /// As [`Family::reference`].
    fn magnitudes(
        &self,
        _info: &Info,
        _inputs: &Tensors,
        _options: &Options,
        _reference: &Reference,
    ) -> Magnitudes {
        Magnitudes::new()
    }

    /// How many heads a problem of these sizes has that have nothing to do with one another, as
    /// [`Family::draw_inputs`] draws it. Each tensor of at least two indices then lies in memory as so many equal pieces, which its
    /// first two indices count together, and a piece of an output is made of the same piece of each input alone; a tensor
    /// of one index belongs to all. 1 where a problem is one whole.
    fn independent_heads(&self, _dims: &Dims) -> usize {
        1
    }

    /// What it costs at least.
    fn cost(&self, dims: &Dims, dtype: DType) -> Cost;

    /// The problems that `lab bench` times of a version in this type, the smallest first.
    fn bench_shapes(&self, info: &Info, dtype: DType) -> Vec<Dims> {
        vec![info.timed(dtype)]
    }

    /// Whether a run's time is told as that of a replayed graph as well: of what is a few short launches, and what a program
    /// makes again and again, as most families are.
    fn replayed(&self) -> bool {
        true
    }

    /// What must hold of each version beside its error bounds.
    fn checks(&self) -> &'static [VersionCheck] {
        &[]
    }
}

impl fmt::Debug for dyn Family + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl PartialEq for dyn Family + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}
