//! What a plan is made from: shapes, types and options, looked at once.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;

use lab_device::DType;

use crate::{Dims, Error, Info, Options, Plan, Tensors, Tiling, plan::Slot};

/// Type and sizes of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Of an element.
    pub dtype: DType,
    /// Of each index, the last one fastest.
    pub sizes: Vec<usize>,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.dtype, self.sizes)
    }
}

/// Shapes by the names of the tensors.
pub type Shapes = BTreeMap<String, Shape>;

/// Those of tensors.
pub fn shapes_of(tensors: &Tensors) -> Shapes {
    let shape = |t: &crate::Tensor| Shape { dtype: t.dtype, sizes: t.shape.clone() };
    tensors.iter().map(|(name, tensor)| (name.clone(), shape(tensor))).collect()
}

/// What a request was found to be. Launches count on it, so nobody writes it: a [`Request`] derefs to it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Checked<'a> {
    /// Its sizes.
    pub dims: Dims,
    /// The run's type.
    pub dtype: DType,
    /// The tile parameters, where they are not those in use.
    pub tiling: Option<&'a Tiling>,
}

impl<'a> Deref for Request<'a> {
    type Target = Checked<'a>;

    fn deref(&self) -> &Self::Target {
        &self.checked
    }
}

/// A problem of a version, checked.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    info: &'a Info,
    shapes: Shapes,
    options: &'a Options,
    checked: Checked<'a>,
    /// Of tensors whose heads lie beside each other in rows: [`Request::with_rows_apart`].
    rows_apart: BTreeMap<&'static str, usize>,
}

impl<'a> Request<'a> {
    /// Of tensors of these shapes.
    ///
    /// # Errors
    /// As [`Info::problem_of_shapes`].
    pub fn new(info: &'a Info, shapes: Shapes, options: &'a Options) -> Result<Self, Error> {
        let (dims, dtype) = info.problem_of_shapes(&shapes)?;
        let checked = Checked { dims, dtype, tiling: None };
        Ok(Self { info, shapes, options, checked, rows_apart: BTreeMap::new() })
    }

    /// Of these tensors.
    ///
    /// # Errors
    /// As [`Request::new`].
    pub fn of(info: &'a Info, inputs: &Tensors, options: &'a Options) -> Result<Self, Error> {
        Self::new(info, shapes_of(inputs), options)
    }

    /// The same with these tile parameters.
    pub fn with_tiling(self, tiling: &'a Tiling) -> Self {
        Self { checked: Checked { tiling: Some(tiling), ..self.checked }, ..self }
    }

    /// The same of tensors \[B, NH, T, D\] that lie as rows \[B T, NH, D\], so many elements apart: their slots go from the first element
    /// to the last. For versions that say that they take it.
    pub fn with_rows_apart(self, rows_apart: BTreeMap<&'static str, usize>) -> Self {
        Self { rows_apart, ..self }
    }

    /// Elements from row to row of such a tensor; `None` of one whose heads come one behind the other.
    pub fn row_stride(&self, name: &str) -> Option<usize> {
        self.rows_apart.get(name).copied()
    }

    /// The shape of its slot.
    fn shape_in_memory(&self, name: &str, shape: &[usize]) -> Vec<usize> {
        match (self.row_stride(name), shape) {
            (Some(stride), &[batch, heads, rows, columns]) => {
                vec![(batch * rows - 1) * stride + heads * columns]
            }
            _ => shape.to_vec(),
        }
    }

    /// The size of that name.
    pub fn dim(&self, name: &str) -> usize {
        self.dims.get(name)
    }

    /// Whether an input that may be left out was given.
    pub fn has(&self, input: &str) -> bool {
        self.info.takes(input) && self.shapes.contains_key(input)
    }

    /// The text of an option.
    pub fn text(&self, name: &str) -> &'a str {
        self.options.text(self.info, name)
    }

    /// The shape of an input.
    pub fn shape(&self, name: &str) -> &Shape {
        self.shapes.get(name).unwrap_or_else(|| panic!("input {name} of a checked problem"))
    }

    /// The shapes of all tensors that were given.
    pub fn shapes(&self) -> &Shapes {
        &self.shapes
    }

    /// The options.
    pub fn options(&self) -> &'a Options {
        self.options
    }

    /// The number of an option.
    pub fn number(&self, name: &str) -> f64 {
        self.options.number(self.info, name)
    }

    /// Adds an input of this name and shape to a plan.
    pub fn input(&self, plan: &mut Plan, name: &str) -> Slot {
        let Shape { dtype, sizes } = self.shape(name);
        plan.input(name, *dtype, &self.shape_in_memory(name, sizes))
    }

    /// Adds an output of this name, type and shape to a plan.
    pub fn output(&self, plan: &mut Plan, name: &str, dtype: DType, shape: &[usize]) -> Slot {
        plan.output(name, dtype, &self.shape_in_memory(name, shape))
    }

    /// The same for several.
    pub fn inputs<const N: usize>(&self, plan: &mut Plan, names: [&str; N]) -> [Slot; N] {
        names.map(|name| self.input(plan, name))
    }
}
