//! Matrices as int8, with a scale for each of their rows.

use decode::quantize_rows;
use lab_device::DType;
use lab_harness::plan::Slot;
use lab_harness::{Error, Tensor, Tensors};

use crate::{Init, Parameter, Parameters};

/// The parameters of a model of which some matrices are of int8: three arenas.
#[derive(Clone, Debug, PartialEq)]
pub struct Quantized {
    /// What stays as it is.
    pub kept: Parameters,
    /// The matrices, of int8.
    pub matrices: Parameters,
    /// Of each matrix \[N, K\] the scales \[N\], f32, in the same order.
    pub scales: Parameters,
}

/// What a file calls the scales of a matrix.
pub(crate) const SCALE: &str = ".scale";

impl Quantized {
    /// Those of a model, of which these matrices become int8.
    pub fn of(all: &Parameters, is_int8: impl Fn(&Parameter) -> bool) -> Self {
        let (matrices, kept): (Vec<_>, Vec<_>) = all.iter().cloned().partition(is_int8);
        let of = |matrix: &Parameter| {
            let [rows, columns] = [matrix.shape[0], matrix.shape[1]];
            let name = format!("{}{SCALE}", matrix.name);
            // What is joined to another is one matrix with it, and so are their scales.
            let scale =
                Parameter::new(name, &[rows], Init::Constant(1.0)).with_room(matrix.room / columns);
            Parameter { joined: matrix.joined, decays: matrix.decays, ..scale }
        };
        let scales = matrices.iter().map(of).collect();
        Self {
            kept: Parameters::new(kept),
            matrices: Parameters::new(matrices),
            scales: Parameters::new(scales),
        }
    }

    /// Of parameters in f32, by name, what a file of them holds: matrices of int8 under their own names, their scales, and the others.
    ///
    /// # Errors
    /// One of a matrix is not finite.
    ///
    /// # Panics
    /// One is missing.
    pub fn quantize(&self, parameters: &Tensors) -> Result<Tensors, Error> {
        let mut all: Tensors =
            self.kept.iter().map(|p| (p.name.clone(), parameters[&p.name].clone())).collect();
        for matrix in self.matrices.iter() {
            let tensor = &parameters[&matrix.name];
            let values: Vec<f32> = tensor.values().into_iter().map(|v| v as f32).collect();
            let (q, scales) =
                quantize_rows(&values, matrix.shape[1]).map_err(|error| Error::Tensor {
                    name: matrix.name.clone(),
                    expected: "finite numbers".into(),
                    got: error.to_string(),
                })?;
            all.insert(matrix.name.clone(), Tensor::new(&matrix.shape, &q));
            let scales = Tensor::new(&[scales.len()], &scales);
            all.insert(format!("{}{SCALE}", matrix.name), scales);
        }
        Ok(all)
    }

    /// Parameters in f32 as they are after that: scale times int8.
    ///
    /// # Panics
    /// One is missing.
    pub fn dequantize(&self, quantized: &Tensors) -> Tensors {
        let mut all: Tensors =
            self.kept.iter().map(|p| (p.name.clone(), quantized[&p.name].clone())).collect();
        for matrix in self.matrices.iter() {
            let columns = matrix.shape[1];
            let scales = quantized[&format!("{}{SCALE}", matrix.name)].values();
            let q = quantized[&matrix.name].values();
            let of = |(e, q): (usize, &f64)| (q * scales[e / columns]) as f32;
            let values: Vec<f32> = q.iter().enumerate().map(of).collect();
            all.insert(matrix.name.clone(), Tensor::new(&matrix.shape, &values));
        }
        all
    }

    /// Refuses tensors that are missing, too many, or of another shape or type; scales that are not finite and above 0; and −128, which
    /// [`quantize_rows`] never writes.
    ///
    /// # Errors
    /// [`Error::Tensor`] with the first of them.
    pub fn check(&self, all: &Tensors) -> Result<(), Error> {
        self.matrices.check_types(all, DType::I8)?;
        self.scales.check_types(all, DType::F32)?;
        self.kept.check_types(all, DType::F32)?;
        let known = [&self.kept, &self.matrices, &self.scales];
        let is_known = |name: &String| known.iter().any(|p| p.shape(name).is_ok());
        let refuse = |name: &str, expected: &str, got: String| {
            Err(Error::Tensor { name: name.to_owned(), expected: expected.to_owned(), got })
        };
        if let Some(name) = all.keys().find(|name| !is_known(name)) {
            return refuse(name, "parameters of the model only", "another".into());
        }
        for p in self.scales.iter() {
            let values = all[&p.name].values();
            if let Some(bad) = values.iter().find(|v| !(**v > 0.0 && v.is_finite())) {
                return refuse(&p.name, "finite scales above 0", bad.to_string());
            }
        }
        for p in self.matrices.iter() {
            if all[&p.name].values().contains(&-128.0) {
                return refuse(&p.name, "numbers from -127 to 127", "-128".into());
            }
        }
        Ok(())
    }
}

/// The arenas of a plan that hold matrices of int8 and their scales.
#[derive(Clone, Copy, Debug)]
pub struct Int8<'a> {
    /// What lies where.
    pub of: &'a Quantized,
    /// Of int8.
    pub matrices: Slot,
    /// Of f32.
    pub scales: Slot,
}

impl<'a> Int8<'a> {
    /// The shape of a matrix of int8, where there is one of this name.
    pub(crate) fn shape(self, name: &str) -> Option<&'a [usize]> {
        self.of.matrices.shape(name).ok()
    }

    /// The matrix of all rows of these, and their scales.
    pub(crate) fn range(self, names: &[&str]) -> Result<[Slot; 2], Error> {
        let of_scales: Vec<String> = names.iter().map(|name| format!("{name}{SCALE}")).collect();
        let of_scales: Vec<&str> = of_scales.iter().map(String::as_str).collect();
        Ok([
            self.of.matrices.range(self.matrices, names)?,
            self.of.scales.range(self.scales, &of_scales)?,
        ])
    }
}
