//! One position of the vLSTM.

use lab_device::DType;
use lab_harness::plan::Slot;
use lab_harness::{Error, Options, Plan, Request, Shape, Shapes};

use crate::{Pass, Sizes, choose};

/// One position of the vLSTM, behind a state that is updated where it lies, as decoding wants it.
///
/// q, k \[B, NH, DHQK\], v \[B, NH, DHHV\] of `dtype`, i, f \[B, NH\] of f32; of the sizes, S is not looked at.
#[derive(Clone, Copy, Debug)]
pub struct VlstmStep {
    /// Of q, k, v and h.
    pub dtype: DType,
    /// Sizes.
    pub sizes: Sizes,
    /// q, k and v.
    pub qkv: [Slot; 3],
    /// i and f.
    pub gates: [Slot; 2],
    /// C \[B, NH, DHQK, DHHV\], n \[B, NH, DHQK\], m \[B, NH\], of f32: as [`crate::Vlstm`] leaves them; zeros and m = −∞ for none. In a
    /// run of bf16 C may be of bf16, too.
    pub state: [Slot; 3],
    /// Added to the normaliser.
    pub eps: f64,
    /// The version: `vlstm_step:v2_slices`.
    pub version: Option<&'static str>,
}

impl VlstmStep {
    /// Adds it; h \[B, NH, DHHV\].
    ///
    /// # Errors
    /// No version takes these sizes, this type or this device; a slot is of another length or type.
    pub fn add(&self, plan: &mut Plan) -> Result<Slot, Error> {
        let Sizes { batch: b, heads: nh, keys, values, .. } = self.sizes;
        let (t, [q, k, v], [i, f], [c, n, m]) = (self.dtype, self.qkv, self.gates, self.state);
        let all = [
            ("q", q, t, vec![b, nh, keys]),
            ("k", k, t, vec![b, nh, keys]),
            ("v", v, t, vec![b, nh, values]),
            ("i", i, DType::F32, vec![b, nh]),
            ("f", f, DType::F32, vec![b, nh]),
            ("C0", c, plan.dtype_of(c).unwrap_or(DType::F32), vec![b, nh, keys, values]),
            ("n0", n, DType::F32, vec![b, nh, keys]),
            ("m0", m, DType::F32, vec![b, nh]),
        ];
        let given: Vec<_> = all.iter().map(|(name, slot, ..)| (*name, *slot)).collect();
        let shape =
            |(name, _, dtype, sizes): (&str, _, _, _)| (name.to_owned(), Shape { dtype, sizes });
        let shapes: Shapes = all.into_iter().map(shape).collect();
        let options = [format!("eps={:?}", self.eps)];
        let version = choose(Pass::Step, plan.device(), &shapes, &options, self.version)?;
        let options = Options::parse(&options, version.info())?;
        let request = Request::new(version.info(), shapes, &options)?;
        let step = version.plan(plan.device(), &request)?;
        Ok(plan.include(&step, &given)?.slot("h"))
    }
}
