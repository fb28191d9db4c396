//! The launches of a head on every step of a text whose products are on tensor cores.

use lab_device::DType;
use lab_harness::plan::{Plan, Scope, Slot};
use lab_harness::{Error, Operand, arguments};
use lstm_fused::kernels::V4_PRODUCT_BACK;
use lstm_fused::launches::{blocks, check_halves, product};

use crate::kernels::HEAD_TENSOR;

/// Columns of z, at most: those of a tile.
pub(super) const MOST_TENSOR_OUTPUTS: usize = 256;

/// Rows of which `head_tensor.cu` leaves the sum of dz.
const SUMMED_ROWS: usize = 16;

/// What such a head reads and writes.
#[derive(Clone, Copy, Debug)]
pub(super) struct TensorHead {
    /// f16 or bf16.
    pub(super) dtype: DType,
    /// Of y, T·B.
    pub(super) rows: usize,
    /// Columns of z, O, up to [`MOST_TENSOR_OUTPUTS`].
    pub(super) outputs: usize,
    /// Columns of y, a multiple of 8.
    pub(super) features: usize,
    /// \[rows, features\].
    pub(super) y: Slot,
    /// The gradient by it, which is written.
    pub(super) dy: Slot,
    /// \[O, features\].
    pub(super) weight: Slot,
    /// The gradient by it, which is written.
    pub(super) dweight: Slot,
}

impl TensorHead {
    /// Adds z, the losses, dy and the gradient by the weight. What else `head_of_text` takes is in `scope`. Gives sums of dz, of
    /// some rows each, \[rows of them, O\] in f32: the gradient by the bias is their sum.
    ///
    /// # Errors
    /// A type that is no halves; what does not fit a tensor map.
    pub(super) fn add(&self, plan: &mut Plan, scope: &Scope) -> Result<Slot, Error> {
        let Self { dtype, rows, outputs, features, .. } = *self;
        check_halves(dtype)?;
        // Rows are multiples of 16 bytes.
        let wide = outputs.next_multiple_of(8);
        let dz = plan.scratch(dtype, rows * wide);
        let parts = plan.scratch(DType::F32, rows.div_ceil(SUMMED_ROWS) * outputs);
        let matrix = |rows, columns| Operand::new(dtype, [rows, columns]);

        let (kernel, [high, of_outputs, _]) = product(plan, &HEAD_TENSOR, "head_of_text", dtype)?;
        let multiprocessors = plan.device().facts().multiprocessors;
        let launch = kernel.grid([blocks(rows, high).min(multiprocessors), 1, 1])?;
        let arguments = arguments![
            Y: self.y.loaded_by(matrix(rows, features).loaded(high)?),
            W: self.weight.loaded_by(matrix(outputs, features).loaded(of_outputs)?),
            DZ: dz.stored_by(matrix(rows, wide).stored()?),
            parts,
            K: features,
            O: outputs,
        ];
        plan.launch_in(scope, &kernel, launch, arguments)?;

        let (kernel, [high, columns, deep]) = product(plan, &HEAD_TENSOR, "head_gradient", dtype)?;
        let tiles = blocks(outputs, high) * blocks(features, columns);
        // Each block has a step, at least.
        let shared = blocks(rows, deep).min(8);
        let shared = 1 << shared.ilog2();
        let launch = kernel.grid([tiles * shared, 1, 1])?.cluster(shared);
        let arguments = arguments![
            DZ: dz.loaded_by(matrix(rows, wide).loaded(deep)?),
            Y: self.y.loaded_by(matrix(rows, features).loaded(deep)?),
            dweight: self.dweight,
            rows,
            K: features,
            O: outputs,
        ];
        plan.launch_in(&Scope::new(), &kernel, launch, arguments)?;

        // As dx of a layer of so many da.
        let (kernel, [high, columns, deep]) =
            product(plan, &V4_PRODUCT_BACK, "gradient_by_x", dtype)?;
        let tiles = blocks(rows, high) * blocks(features, columns);
        let launch = kernel.grid([tiles.min(multiprocessors), 1, 1])?;
        let da = dz.loaded_by(matrix(rows, wide).loaded(high)?);
        let w = self.weight.loaded_by(matrix(outputs, features).loaded(deep)?);
        let arguments = arguments![
            DA: da, W: w, DA_REVERSE: da, W_REVERSE: w,
            DX: self.dy.stored_by(matrix(rows, features).stored()?),
            rows, H: wide / 4, C: features, both: false,
        ];
        plan.launch_in(&Scope::new(), &kernel, launch, arguments)?;
        Ok(parts)
    }
}
