//! Weights of int8 for products of many rows: `kernels/dequantize.cu`.

use lab_device::DType;
use lab_harness::plan::Slot;
use lab_harness::{Error, Plan, arguments};

use crate::kernels;

/// scale · W of int8, rounded to the run's type.
#[derive(Clone, Copy, Debug)]
pub struct Dequantize {
    /// What it becomes: f16, bf16 or f32.
    pub dtype: DType,
    /// Rows.
    pub n: usize,
    /// Columns, a multiple of 16.
    pub k: usize,
    /// int8 \[N, K\].
    pub weight: Slot,
    /// f32 \[N\].
    pub scale: Slot,
}

impl Dequantize {
    /// Adds the launch; \[N, K\] in scratch.
    ///
    /// # Errors
    /// A type, a size, a slot's length or beginning that does not fit.
    pub fn add(&self, plan: &mut Plan) -> Result<Slot, Error> {
        let Self { dtype, n, k, weight, scale } = *self;
        if ![DType::F32, DType::F16, DType::BF16].contains(&dtype) {
            return Err(Error::bad("dtype of dequantize", "f32, f16 or bf16", dtype));
        }
        if !k.is_multiple_of(16) || k == 0 || k > 1 << 30 {
            return Err(Error::bad("K of dequantize", "a multiple of 16 up to 2^30", k));
        }
        for (name, slot, length) in [("W", weight, n * k), ("scale", scale, n)] {
            if slot.len() != length || length == 0 {
                let expected = format!("{length} elements, more than none");
                return Err(Error::bad(format!("{name} of dequantize"), expected, slot.len()));
            }
        }
        if !weight.start().is_multiple_of(16) {
            let expected = "a multiple of 16";
            return Err(Error::bad("first element of W of dequantize", expected, weight.start()));
        }
        let packs = n * k / 16;
        let blocks = packs.div_ceil(256);
        let kernel =
            plan.device().kernel(&kernels::DEQUANTIZE, &format!("dequantize<{}>", dtype.cpp()))?;
        let blocks = u32::try_from(blocks).ok().filter(|b| *b <= i32::MAX as u32);
        let blocks = blocks.ok_or_else(|| {
            Error::bad("size of dequantize", "at most 2^31 blocks of 4096 numbers", n * k)
        })?;
        let launch = kernel.grid([blocks, 1, 1])?;
        let to = plan.scratch(dtype, n * k);
        plan.launch(&kernel, launch, arguments![weight, scale, to, packs, K: k])?;
        Ok(to)
    }
}
