//! SwiGLU in the registers of a product: `kernels/linear_swiglu.cu`, `kernels/linear_swiglu_back.cu`.

use lab_device::{DType, Device, KernelSource, TensorMap};
use lab_harness::plan::{Argument, Slot};
use lab_harness::{Error, Operand, Plan, arguments};

use crate::kernels;

/// gate_up = x Wᵀ and u = silu(gate) ⊙ up in one launch: x \[rows, K\], W \[2 width, K\], the rows of gate first, gate_up
/// \[rows, 2 width\], u \[rows, width\]; row-major and without gaps.
///
/// u is SwiGLU of the rounded gate_up, as a pass over it would give. Of halves, on the tensor cores of sm_90a: [`LinearSwiGlu::takes`].
#[derive(Clone, Copy, Debug)]
pub struct LinearSwiGlu {
    /// Of all tensors: f16 or bf16.
    pub dtype: DType,
    /// Rows, width, K.
    pub sizes: [usize; 3],
    /// What goes into the layer.
    pub x: Slot,
    /// W.
    pub weight: Slot,
    /// Where gate and up go, for the way back; nowhere without it.
    pub gate_up: Option<Slot>,
    /// Where u goes.
    pub u: Slot,
}

/// Back through y = u Wᵀ and the SwiGLU before it in one launch: from dy \[rows, K\], W \[K, width\] and gate_up \[rows,
/// 2 width\] the gradient of gate_up, and u again.
///
/// As SwiGLU's way back from the rounded du = dy W. For what [`LinearSwiGlu::takes`].
#[derive(Clone, Copy, Debug)]
pub struct LinearSwiGluBack {
    /// Of all tensors: f16 or bf16.
    pub dtype: DType,
    /// Rows, width, K.
    pub sizes: [usize; 3],
    /// What comes back to y.
    pub dy: Slot,
    /// W, of the layer behind.
    pub weight: Slot,
    /// What the forward pass has kept.
    pub gate_up: Slot,
    /// Where its gradient goes.
    pub dgate_up: Slot,
    /// Where u goes, where it was not kept.
    pub u: Option<Slot>,
}

/// Rows of a tile, columns of its sums, its depth.
const TILE: [usize; 3] = [128, 256, 64];
/// Rows of a warpgroup.
const GROUP: usize = 64;

impl LinearSwiGlu {
    /// Whether these types and sizes are for these kernels, on this device: halves, rows of multiples of 16 bytes, sm_90a.
    pub fn takes(device: &Device, dtype: DType, [_, width, k]: [usize; 3]) -> bool {
        check(device, dtype, [1, width, k]).is_ok()
    }

    /// Adds the launch.
    ///
    /// # Errors
    /// [`LinearSwiGlu::takes`] says no; a slot of another length; what a kernel or a tensor map refuses.
    pub fn add(&self, plan: &mut Plan) -> Result<(), Error> {
        let Self { dtype, sizes: [rows, width, k], .. } = *self;
        check(plan.device(), dtype, self.sizes)?;
        check_lengths(&[
            ("x", Some(self.x), rows * k),
            ("weight", Some(self.weight), 2 * width * k),
            ("gate_up", self.gate_up, 2 * rows * width),
            ("u", Some(self.u), rows * width),
        ])?;
        let [high, wide, _] = TILE;
        let tiles = rows.div_ceil(high) * width.div_ceil(wide / 2);
        let (kernel, launch) =
            of_type(plan, &kernels::LINEAR_SWIGLU, "linear_swiglu", dtype, tiles)?;
        let weight = Operand::new(dtype, [width, k]).several(2).loaded(wide / 2)?;
        let kept = match self.gate_up {
            Some(gate_up) => gate_up.stored_by(two(dtype, rows, width)?),
            None => nowhere(plan, dtype)?,
        };
        let all = arguments![
            X: self.x.loaded_by(Operand::new(dtype, [rows, k]).loaded(high)?),
            W: self.weight.loaded_by(weight),
            C: kept,
            U: self.u.stored_by(Operand::new(dtype, [rows, width]).stored()?),
            M: rows,
            H: width,
            K: k,
            keeps: self.gate_up.is_some(),
        ];
        plan.launch(&kernel, launch, all)
    }
}

impl LinearSwiGluBack {
    /// Adds the launch.
    ///
    /// # Errors
    /// As [`LinearSwiGlu::add`].
    pub fn add(&self, plan: &mut Plan) -> Result<(), Error> {
        self.add_tiles(plan, &kernels::LINEAR_SWIGLU_BACK, "linear_swiglu_back", TILE[1])
    }

    /// The same by `kernels/linear_swiglu_back_turns.cu`.
    pub(crate) fn add_in_turns(&self, plan: &mut Plan) -> Result<(), Error> {
        let source = &kernels::LINEAR_SWIGLU_BACK_TURNS;
        self.add_tiles(plan, source, "linear_swiglu_back_turns", TILE[1] / 2)
    }

    /// The launch of a kernel whose tiles are so wide.
    fn add_tiles(
        &self,
        plan: &mut Plan,
        source: &'static KernelSource,
        name: &str,
        wide: usize,
    ) -> Result<(), Error> {
        let Self { dtype, sizes: [rows, width, k], .. } = *self;
        check(plan.device(), dtype, self.sizes)?;
        check_lengths(&[
            ("dy", Some(self.dy), rows * k),
            ("weight", Some(self.weight), width * k),
            ("gate_up", Some(self.gate_up), 2 * rows * width),
            ("dgate_up", Some(self.dgate_up), 2 * rows * width),
            ("u", self.u, rows * width),
        ])?;
        let [high, _, deep] = TILE;
        let tiles = rows.div_ceil(high) * width.div_ceil(wide);
        let (kernel, launch) = of_type(plan, source, name, dtype, tiles)?;
        let u = match self.u {
            Some(u) => u.stored_by(Operand::new(dtype, [rows, width]).stored()?),
            None => nowhere(plan, dtype)?,
        };
        let all = arguments![
            DY: self.dy.loaded_by(Operand::new(dtype, [rows, k]).several(1).loaded(high)?),
            W: self.weight.loaded_by(Operand::new(dtype, [k, width]).several(1).loaded(deep)?),
            gate_up: self.gate_up.loaded_by(two(dtype, rows, width)?),
            dgate_up: self.dgate_up.stored_by(two(dtype, rows, width)?),
            U: u,
            M: rows,
            H: width,
            K: k,
            makes_u: self.u.is_some(),
        ];
        plan.launch(&kernel, launch, all)
    }
}

/// Where nobody stores.
fn nowhere(plan: &mut Plan, dtype: DType) -> Result<Argument, Error> {
    Ok(plan.scratch(dtype, 8).stored_by(Operand::new(dtype, [1, 8]).stored()?))
}

/// Gate and up of \[rows, 2 width\] as two matrices, a warpgroup's rows of a panel at a time.
fn two(dtype: DType, rows: usize, width: usize) -> Result<TensorMap, Error> {
    let two = Operand::new(dtype, [rows, width]).rows_apart(2 * width).several(2);
    two.matrices_apart(width).loaded(GROUP)
}

fn of_type(
    plan: &Plan,
    source: &'static KernelSource,
    name: &str,
    dtype: DType,
    tiles: usize,
) -> Result<(lab_device::Kernel, lab_device::Launch), Error> {
    let device = plan.device();
    let mut of_type = source.instances(name).filter(|i| i.has("T", dtype.cpp()));
    let kernel = device.load(of_type.next().expect("of both halves"))?;
    let blocks = tiles.min(device.facts().multiprocessors as usize);
    let launch = kernel.grid([blocks as u32, 1, 1])?;
    Ok((kernel, launch))
}

fn check(device: &Device, dtype: DType, [_, width, k]: [usize; 3]) -> Result<(), Error> {
    if ![DType::F16, DType::BF16].contains(&dtype) {
        return Err(Error::bad("dtype of a layer with SwiGLU", "f16 or bf16", dtype));
    }
    let arch = &device.facts().arch;
    if !kernels::LINEAR_SWIGLU.runs_on(arch) {
        return Err(Error::bad("GPU of a layer with SwiGLU", "sm_90a", arch));
    }
    for (name, size) in [("width", width), ("K", k)] {
        if !size.is_multiple_of(8) {
            let expected = "a multiple of 8, for TMA takes rows of a multiple of 16 bytes";
            return Err(Error::bad(name, expected, size));
        }
    }
    Ok(())
}

fn check_lengths(all: &[(&str, Option<Slot>, usize)]) -> Result<(), Error> {
    for (name, slot, length) in all {
        if let Some(slot) = slot.filter(|slot| slot.len() != *length) {
            return Err(Error::bad(*name, format!("{length} elements"), slot.len()));
        }
    }
    Ok(())
}
