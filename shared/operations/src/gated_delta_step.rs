//! One position of the gated delta rule.

use lab_device::DType;
use lab_harness::plan::Slot;
use lab_harness::{Error, Options, Plan, Request, Shape, Shapes};

use crate::gated_delta::option_of_scale;
use crate::{GatedDeltaSizes, Pass, choose};

/// One position of the gated delta rule, behind a state that is updated where it lies, as decoding wants it.
///
/// q, k \[B, NKV, DHQK\], v \[B, NH, DHHV\] of `dtype`, g, beta \[B, NH\] of f32; of the sizes, S is not looked at.
#[derive(Clone, Copy, Debug)]
pub struct GatedDeltaStep {
    /// Of q, k, v and h.
    pub dtype: DType,
    /// Sizes.
    pub sizes: GatedDeltaSizes,
    /// q, k and v.
    pub qkv: [Slot; 3],
    /// g and beta.
    pub gates: [Slot; 2],
    /// C \[B, NH, DHQK, DHHV\] of f32, as [`GatedDelta`](crate::GatedDelta) leaves it; zeros for none.
    pub state: Slot,
    /// What q is multiplied by; 1 / √DHQK where none is given.
    pub scale: Option<f64>,
    /// The version: `gdn_step:v1_once`.
    pub version: Option<&'static str>,
}

impl GatedDeltaStep {
    /// Adds it; h \[B, NH, DHHV\].
    ///
    /// # Errors
    /// As [`GatedDelta::add_forward`](crate::GatedDelta::add_forward).
    pub fn add(&self, plan: &mut Plan) -> Result<Slot, Error> {
        let GatedDeltaSizes { batch, heads, shared_heads, keys, values, .. } = self.sizes;
        let (t, [q, k, v], [g, beta]) = (self.dtype, self.qkv, self.gates);
        let all = [
            ("q", q, t, vec![batch, shared_heads, keys]),
            ("k", k, t, vec![batch, shared_heads, keys]),
            ("v", v, t, vec![batch, heads, values]),
            ("g", g, DType::F32, vec![batch, heads]),
            ("beta", beta, DType::F32, vec![batch, heads]),
            ("C0", self.state, DType::F32, self.sizes.of_state()),
        ];
        let given: Vec<_> = all.iter().map(|(name, slot, ..)| (*name, *slot)).collect();
        let shape =
            |(name, _, dtype, sizes): (&str, _, _, _)| (name.to_owned(), Shape { dtype, sizes });
        let shapes: Shapes = all.into_iter().map(shape).collect();
        let options: Vec<String> = option_of_scale(self.scale)?.into_iter().collect();
        let version = choose(Pass::DeltaStep, plan.device(), &shapes, &options, self.version)?;
        let options = Options::parse(&options, version.info())?;
        let request = Request::new(version.info(), shapes, &options)?;
        let step = version.plan(plan.device(), &request)?;
        Ok(plan.include(&step, &given)?.slot("h"))
    }
}
