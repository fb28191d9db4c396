//! Softmax attention over whole sequences.

use lab_device::DType;
use lab_harness::plan::{Included, Slot};
use lab_harness::{Error, Options, Plan, Request, Shape, Shapes};

use crate::choose_attention;
use crate::cut::Made;
use crate::saved::{Export, Saved};

/// Of q, k, v: B, NH, NKV, S, D.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionSizes {
    /// B.
    pub batch: usize,
    /// NH, heads of q, a multiple of NKV.
    pub heads: usize,
    /// NKV, heads of k and v.
    pub shared_heads: usize,
    /// S.
    pub positions: usize,
    /// D, columns of a head.
    pub columns: usize,
}

/// Softmax attention: q, k, v → o; see [`lab_families::attention`] for the equations.
///
/// q \[B, NH, S, D\], k and v \[B, NKV, S, D\] of `dtype`. NH / NKV heads of q share one of k and v.
///
/// ```no_run
/// # use lab_device::DType;
/// # use lab_harness::{Error, Plan, plan::Slot};
/// # use lab_operations::{Attention, AttentionSizes};
/// # fn add(plan: &mut Plan, [q, k, v, upward]: [Slot; 4]) -> Result<Slot, Error> {
/// let sizes = AttentionSizes { batch: 1, heads: 4, shared_heads: 2, positions: 256, columns: 64 };
/// let attention = Attention::new(DType::BF16, sizes, [q, k, v]);
/// let (outputs, saved) = attention.add_forward_saving(plan)?;
/// // … what computes the gradient of outputs.o
/// let gradients = attention.add_backward(plan, &saved, upward)?;
/// # Ok(gradients.q)
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Attention {
    /// Of q, k, v and o.
    pub dtype: DType,
    /// Sizes.
    pub sizes: AttentionSizes,
    /// Queries.
    pub q: Slot,
    /// Keys.
    pub k: Slot,
    /// Values.
    pub v: Slot,
    /// Where packed sequences begin and end, i32 \[N + 1\], rising from 0 to S: sequence n has the positions from its n-th element
    /// up to the next, which may be none, and B is 1. A position sees those of its own sequence alone.
    /// See [`lab_families::packed::PackedSlot`].
    pub cu_seqlens: Option<Slot>,
    /// Whether a position sees no later one.
    pub causal: bool,
    /// The version of the forward pass alone, and that of both passes: `attention:v2_mma`.
    pub versions: [Option<&'static str>; 2],
}

/// What comes out, as scratch of the plan.
#[derive(Clone, Copy, Debug)]
pub struct AttentionOutputs {
    /// \[B, NH, S, D\].
    pub o: Slot,
    /// log Σ exp of the scores of each row, \[B, NH, S\] of f32.
    pub lse: Slot,
}

/// What a forward pass of attention has saved.
pub type SavedAttention = Saved<Attention>;

/// Gradients, as scratch of the plan: each of its tensor's type and shape.
#[derive(Clone, Copy, Debug)]
pub struct AttentionGradients {
    /// Of q.
    pub q: Slot,
    /// Of k.
    pub k: Slot,
    /// Of v.
    pub v: Slot,
}

/// Of a slot `cu_seqlens`.
pub(crate) fn shape_of_ends(slot: Slot) -> Shape {
    Shape { dtype: DType::I32, sizes: vec![slot.len()] }
}

impl Attention {
    /// Causal, of sequences of one length, by the version that suits.
    pub fn new(dtype: DType, sizes: AttentionSizes, [q, k, v]: [Slot; 3]) -> Self {
        Self { dtype, sizes, q, k, v, cu_seqlens: None, causal: true, versions: [None; 2] }
    }

    fn inputs(&self) -> Vec<(&'static str, Slot)> {
        let packed = self.cu_seqlens.map(|slot| ("cu_seqlens", slot));
        [("q", self.q), ("k", self.k), ("v", self.v)].into_iter().chain(packed).collect()
    }

    /// A version of the forward pass, or of both, and its plan.
    fn plan_of(&self, plan: &Plan, gradients: bool) -> Result<Made, Error> {
        let AttentionSizes { batch, heads, shared_heads, positions, columns } = self.sizes;
        let shape =
            |heads| Shape { dtype: self.dtype, sizes: vec![batch, heads, positions, columns] };
        let all = [("q", heads), ("k", shared_heads), ("v", shared_heads), ("do", heads)];
        let named = all.into_iter().filter(|(name, _)| gradients || *name != "do");
        let packed = self.cu_seqlens.map(|ends| ("cu_seqlens".to_owned(), shape_of_ends(ends)));
        let shapes: Shapes =
            named.map(|(name, heads)| (name.to_owned(), shape(heads))).chain(packed).collect();
        let options = vec![format!("causal={}", if self.causal { "yes" } else { "no" })];
        let name = self.versions[usize::from(gradients)];
        let version = choose_attention(gradients, plan.device(), &shapes, &options, name)?;
        let parsed = Options::parse(&options, version.info())?;
        let request = Request::new(version.info(), shapes, &parsed)?;
        Made::by(version, plan.device(), &request, options)
    }

    fn outputs(included: &Included) -> AttentionOutputs {
        AttentionOutputs { o: included.slot("o"), lse: included.slot("lse") }
    }

    /// Adds the forward pass alone.
    ///
    /// # Errors
    /// No version takes these sizes, this type or this device; a slot is of another length or type.
    pub fn add_forward(&self, plan: &mut Plan) -> Result<AttentionOutputs, Error> {
        Ok(self.add_forward_of(plan)?.1)
    }

    /// The same, with the version that makes it.
    fn add_forward_of(&self, plan: &mut Plan) -> Result<(String, AttentionOutputs), Error> {
        let forward = self.plan_of(plan, false)?;
        let included = plan.include(&forward.plan, &self.inputs())?;
        Ok((forward.version, Self::outputs(&included)))
    }

    /// Adds the forward pass, and what it saves for [`Attention::add_backward`].
    ///
    /// # Errors
    /// As [`Attention::add_forward`].
    pub fn add_forward_saving(
        &self,
        plan: &mut Plan,
    ) -> Result<(AttentionOutputs, SavedAttention), Error> {
        match self.plan_of(plan, true)?.cut() {
            Ok(cut) => {
                let (included, saved) = cut.add_forward(plan, &self.inputs())?;
                Ok((Self::outputs(&included), saved))
            }
            Err(whole) => {
                let (version, outputs) = self.add_forward_of(plan)?;
                Ok((outputs, Saved::of_inputs(version, *whole, &self.inputs())))
            }
        }
    }

    /// Takes what a forward pass of this operation has saved in another plan as inputs of this one: see
    /// [`Vlstm::import`](crate::Vlstm::import).
    ///
    /// # Errors
    /// As [`Attention::add_forward`]; or the version, the options or a tensor is another than this operation has on this device.
    pub fn import(&self, plan: &mut Plan, export: &Export) -> Result<SavedAttention, Error> {
        let both = self.plan_of(plan, true)?;
        Saved::import(plan, both, export)
    }

    /// Adds the backward pass, from the gradient of o. What the forward pass has saved stays as it is.
    ///
    /// # Errors
    /// A slot is of another length, type or plan.
    pub fn add_backward(
        &self,
        plan: &mut Plan,
        saved: &SavedAttention,
        of_o: Slot,
    ) -> Result<AttentionGradients, Error> {
        let included = saved.add_backward(plan, &[("do", of_o)])?;
        let [q, k, v] = ["dq", "dk", "dv"].map(|name| included.slot(name));
        Ok(AttentionGradients { q, k, v })
    }
}
